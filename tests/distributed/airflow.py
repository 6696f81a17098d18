"""Airflow as a cluster runs it: CeleryExecutor, PostgreSQL, Redis, and two of each process."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from redis import Redis

from tests.system.kills import NOTICED_AFTER
from tests.system.local_airflow import LocalAirflow

WORKER_SLOTS = 3
# Whoever is gone is noticed by its silence. Airflow's own defaults are 30, 300, 30, 600 and 120 s.
SOON_NOTICED = NOTICED_AFTER | {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
}


class DistributedAirflow(LocalAirflow):
    """Two schedulers, two triggerers and two workers, one API server and one DAG processor.

    :param database: the URL of a PostgreSQL database, without a scheme.
    :param broker: the URL of Redis.
    """

    def __init__(
        self,
        dags_folder: Path,
        home: Path,
        env: Mapping[str, str],
        *,
        database: str,
        broker: str,
    ) -> None:
        cluster = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(WORKER_SLOTS),
            # For thousands of sensors, all with one triggerer while the other is away.
            "AIRFLOW__CORE__MAX_MAP_LENGTH": "10000",
            "AIRFLOW__TRIGGERER__CAPACITY": "10000",
        }
        super().__init__(dags_folder, home, cluster | SOON_NOTICED | dict(env))

    def start(self) -> None:
        """Start one of each but the workers, then all others at once."""
        super().start()
        others = ("scheduler-2", "triggerer-2", "worker", "worker-2")
        checks: dict[str, Callable[[], bool]] = {}
        try:
            for name in others:
                checks[name] = self._launch_another(kind_of(name), name)
            for name, has_started in checks.items():
                self._wait_for_start(name, has_started)
        except BaseException:
            self.stop()
            raise

    def start_again(self, name: str) -> None:
        """Start what was killed."""
        self.start_another(kind_of(name), name)

    def age_messages(self) -> list[str]:
        """Let Celery send the messages again that no worker has acknowledged, as after a day.

        It looks for such messages as soon as a worker starts, and then rarely.

        :return: Celery's names of these tasks.
        """
        with Redis.from_url(self.env["AIRFLOW__CELERY__BROKER_URL"]) as broker:
            messages = broker.hgetall("unacked")
            if messages:
                broker.zadd("unacked_index", dict.fromkeys(messages, 0.0))
        return [task_of(message) for message in messages.values()]

    def times_handled(self, task: str) -> int:
        """Count how often a worker has come to an end with a task of Celery's."""
        end = rf"execute_workload\[{task}\] (?:succeeded|raised)"
        count = 0
        for path in self.home.glob("worker*.log"):
            log = path.read_text(errors="replace")
            count += len(re.findall(end, log))
        return count

    def _launch_another(self, kind: str, name: str) -> Callable[[], bool]:
        if kind != "worker":
            return super()._launch_another(kind, name)
        options = (
            "--celery-hostname",
            name,
            "--skip-serve-logs",
            "--without-mingle",
            "--without-gossip",
        )
        log = self._log_path(name)
        seen = log.stat().st_size if log.exists() else 0
        self.processes[name] = self._launch(name, ("celery", "worker", *options))

        def is_ready() -> bool:
            new_text = log.read_bytes()[seen:]
            return b" ready." in new_text

        return is_ready


def kind_of(name: str) -> str:
    """Give the kind of a process: that of ``worker-2`` is ``worker``."""
    return name.removesuffix("-2")


def task_of(message: bytes) -> str:
    """Give Celery's name of the task of a message."""
    envelope = json.loads(message)[0]
    return str(envelope["headers"]["id"])
