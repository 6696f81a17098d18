"""Tasks that create jobs, killed: what the service holds then, and what the task says of it.

``python -m tests.system.kills [--seed N]`` does to tasks of the http provider what
``test_kills.py`` does to ours with a ledger in each of the stores, and prints all. It runs where
that provider is installed: ``make kills``.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

import psutil

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.exchange import Response
from fsm_provider.testing.faults import Exchange
from tests.capabilities import IS_AIRFLOW_3, RETRIES_OF_KILLED
from tests.distributed.backends import postgresql
from tests.history import Event
from tests.processes import end_on_signals
from tests.system.airflow_api import LocalAirflowError
from tests.system.kill_stores import STORES, Databases, available, databases
from tests.system.local_airflow import LocalAirflow

SYSTEM = Path(__file__).parent
OURS = SYSTEM / "dags" / "kills.py"
CONTROL = SYSTEM / "dags_control" / "kills_http.py"
DAG_IDS = {
    OURS: ("kills_one", "kills_bulk"),
    CONTROL: ("control_one", "control_bulk"),
}
TASK_ID = "create"
UNCERTAIN = "may or may not have taken effect"

POINTS = (
    "before the POST",
    "stored, not answered",
    "answered, not recorded",
    "recorded",
)
VICTIMS = ("task", "worker", "both")
"""The task's process; the executor's, which supervises it; or both, as when a machine goes down."""

BULK_RUNS = 20
BULK_JOBS = 200
CONCURRENCY = 8
LATENCY = 0.03
NOTICED_AFTER = {
    # A worker that is gone is noticed by its silence. Airflow's own defaults are 300, 10 and 5 s.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "1",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # Airflow 2.
    "AIRFLOW__SCHEDULER__SCHEDULER_ZOMBIE_TASK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ZOMBIE_DETECTION_INTERVAL": "1",
    "AIRFLOW__SCHEDULER__LOCAL_TASK_JOB_HEARTBEAT_SEC": "1",
}


IS_RETRIED = RETRIES_OF_KILLED.is_there or not IS_AIRFLOW_3
"""Whether Airflow retries a task whose process was killed; else the test clears it."""
ALSO_AFTER_ONE_KILL: set[str] = set() if IS_AIRFLOW_3 else {"up_for_retry"}
"""States. Airflow 2 sometimes takes the second attempt for dead as well, even after its end."""


@dataclass(frozen=True)
class Kill:
    """The end of the process that sends a run's n-th request.

    :param seconds: from the storing of the job to the kill.
    :param answered: whether the request is answered meanwhile.
    """

    victim: str
    request: int = 1
    seconds: float = 0.0
    answered: bool = True


def random_kills(seed: int, number: int) -> list[Kill]:
    """Choose points in the creation of many jobs, and who dies."""
    chance = random.Random(seed)
    kills: list[Kill] = []
    for _ in range(number):
        victim = chance.choice(VICTIMS)
        request = chance.randint(1, BULK_JOBS)
        seconds = chance.uniform(0, 2 * LATENCY)
        kills.append(Kill(victim, request, seconds))
    return kills


class Killer:
    """Handles each creation of a job, and kills its sender if that is planned.

    :ivar history: what became of each request, by the reference of its job.
    """

    def __init__(self) -> None:
        self.planned: dict[int, Kill] = {}
        self.seen: Counter[int] = Counter()
        self.done: list[asyncio.Task[None]] = []
        self.history: list[Event] = []

    async def play(self, exchange: Exchange) -> None:
        begin = time.time()
        response = await exchange.handle()
        await self._note(exchange, response, begin)
        number = run_number(exchange.request.url.path)
        self.seen[number] += 1
        kill = self.planned.get(number)
        if kill is None or self.seen[number] != kill.request:
            await exchange.respond(response)
            return
        # Looked for while it waits for the response: afterwards it may close the connection.
        client = tuple(exchange.request.scope["client"])
        pids = await asyncio.to_thread(_pids_behind, client, kill.victim)
        killing = asyncio.create_task(asyncio.to_thread(_kill, pids, kill.seconds))
        self.done.append(killing)
        if kill.answered:
            await exchange.respond(response)
            return
        await asyncio.wait([killing])
        exchange.close()

    async def _note(self, exchange: Exchange, response: Response, begin: float) -> None:
        job = await exchange.request.json()
        made = json.loads(response.body) if response.status < 300 else {}
        self.history.append(
            Event(
                key=job.get("customerReference", ""),
                who="service",
                what="made" if made else "refused",
                job_id=made.get("id"),
                begin=begin,
                end=time.time(),
            )
        )


def run_number(path: str) -> int:
    """Give the number of the run that creates a job at this path."""
    return int(path.split("/")[-2]) // 1000


PROCESS_LOOKS = 10
"""How often to look for the process behind a connection: one look may miss a process that forks."""


def process_behind(client: tuple[str, int]) -> int:
    """Give the process on this machine that is connected to this one from an address.

    :raises ValueError: if there is none any more.
    """
    for _ in range(PROCESS_LOOKS):
        pids = _holders_of_connection(client)
        with suppress(psutil.NoSuchProcess, ValueError):  # what it forked has just ended
            # What it forks meanwhile holds the connection too, and is younger.
            return min(pids, key=lambda pid: psutil.Process(pid).create_time())
    raise ValueError(f"no process is behind {client}")


def _holders_of_connection(client: tuple[str, int]) -> set[int]:
    """Give the processes that hold the other end of a connection to this process."""
    # To another server, another process may have the same address.
    own = psutil.Process().net_connections("tcp4")
    other_ends = {(connection.raddr, connection.laddr) for connection in own}
    pids: set[int] = set()
    for connection in psutil.net_connections("tcp4"):
        is_other_end = (connection.laddr, connection.raddr) in other_ends
        if is_other_end and connection.laddr == client and connection.pid:
            pids.add(connection.pid)
    return pids


def _pids_behind(client: tuple[str, int], victim: str) -> list[int]:
    task = process_behind(client)
    worker = psutil.Process(task).ppid()
    pids = {
        "task": [task],
        "worker": [worker],
        "both": [worker, task],
    }
    return pids[victim]


def _kill(pids: Collection[int], seconds: float) -> None:
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Run:
    """A run of one of the DAGs, whose one task creates a job for each reference."""

    number: int
    dag_id: str
    run_id: str
    references: list[str]
    conf: dict[str, Any]

    @property
    def task(self) -> dict[str, Any]:
        """Its task, as the outcomes of others name it."""
        return {
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "task_id": TASK_ID,
            "map_index": -1,
            "airflow": "",
        }


@dataclass(frozen=True)
class Report:
    """How a run has ended."""

    state: str
    attempts: int
    log: str
    """The task's, of its last attempt."""
    result: Any
    """What the task left in XCom, also where it failed."""
    jobs: dict[str, list[int]]
    """The jobs that the service holds, by reference."""

    @property
    def job_ids(self) -> list[int]:
        """All of them."""
        return list(chain.from_iterable(self.jobs.values()))


@contextmanager
def staged(
    folder: Path,
    *dag_files: Path,
    stores: Collection[str],
    slots: int = 4,
) -> Iterator["Stage"]:
    """Run an Airflow with these DAGs, a service, and what the ledgers need.

    :param folder: an empty one.
    :param stores: where ledgers are.
    :param slots: how many tasks may run at a time.
    """
    dags = folder / "dags"
    dags.mkdir()
    for file in dag_files:
        (dags / file.name).symlink_to(file)
    with (
        FakeFieldService(latency=LATENCY) as service,
        databases(folder, service, stores) as ledgers,
    ):
        connection = {
            "conn_type": "http",
            "host": service.base_url,
            "password": service.settings.token,
        }
        env = NOTICED_AFTER | ledgers.env
        env["AIRFLOW_CONN_FSM_HTTP"] = json.dumps(connection)
        env["AIRFLOW__CORE__PARALLELISM"] = str(slots)
        # Airflow 3.0 takes a DAG whose tasks were killed for gone until its file is parsed again.
        env["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "5"
        with (
            _database() as database_env,
            LocalAirflow(dags, folder / "home", env | database_env) as airflow,
        ):
            for file in dag_files:
                for dag_id in DAG_IDS[file]:
                    airflow.wait_for_dag(dag_id)
            yield Stage(airflow, service, ledgers)


@contextmanager
def _database() -> Iterator[dict[str, str]]:
    """Give the environment of a database that lets tasks run in parallel.

    SQLite does in Airflow 3; Airflow 2 needs PostgreSQL.
    """
    if IS_AIRFLOW_3:
        yield {}
        return
    with postgresql() as url:
        yield {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{url}",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        }


class Stage:
    """An Airflow, and a service that kills the senders of planned requests."""

    def __init__(
        self,
        airflow: LocalAirflow,
        service: FakeFieldService,
        ledgers: Databases | None = None,
    ) -> None:
        self.airflow = airflow
        self.service = service
        self.ledgers = ledgers or Databases()
        self.killer = Killer()
        self.service.fail("POST", "/properties/*/jobs", self.killer, every=True)
        self._numbers = count(1)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Start no task before the end of the block; to be entered while none runs.

        On SQLite, Airflow's API server would wait for itself where it clears or triggers a run
        while a task writes: its event loop for a lock that another of its threads holds until the
        loop goes on.
        """
        self._pause(True)
        try:
            yield
        finally:
            self._pause(False)

    def _pause(self, paused: bool) -> None:
        all_dags = {"dag_id_pattern": "~"}
        self.airflow.api("PATCH", "/dags", params=all_dags, json={"is_paused": paused})

    def start_one(
        self,
        dag_id: str,
        point: str,
        victim: str,
        fsm_conn_id: str = "fsm_default",
    ) -> Run:
        """Have one job created by a task that dies at this point of its first attempt."""
        number = next(self._numbers)
        if point == "stored, not answered":
            self.killer.planned[number] = Kill(victim, answered=False)
        conf = {
            "point": point,
            "victim": victim,
            "fsm_conn_id": fsm_conn_id,
        }
        return self._start(dag_id, number, 1, conf)

    def start_bulk(
        self,
        dag_id: str,
        kill: Kill | None,
        fsm_conn_id: str = "fsm_default",
        *,
        once_per: str = "run",
        runs: int = 1,
    ) -> list[Run]:
        """Have many jobs created by runs that are given the same list; at most one task dies, once.

        That of a single run waits for its end.
        """
        number = next(self._numbers)
        if kill:
            self.killer.planned[number] = kill
        waits_for_its_end = kill is not None and runs == 1
        conf = {
            "jobs": BULK_JOBS,
            "concurrency": CONCURRENCY,
            "killed": waits_for_its_end,
            "once_per": once_per,
            "fsm_conn_id": fsm_conn_id,
        }
        return [self._start(dag_id, number, BULK_JOBS, conf) for _ in range(runs)]

    def _start(self, dag_id: str, number: int, jobs: int, conf: dict[str, Any]) -> Run:
        conf = {"number": number, **conf}
        run_id = self.airflow.trigger(dag_id, conf)
        references = [f"PO-{number}-{index}" for index in range(jobs)]
        return Run(number, dag_id, run_id, references, conf)

    def finish(self, runs: Iterable[Run]) -> list[Report]:
        """Wait for the end of the runs."""
        reports = [self._finish(run) for run in runs]
        for kill in self.killer.done:
            if kill.done():  # else it is one of other runs
                kill.result()
        return reports

    def _finish(self, run: Run) -> Report:
        self.airflow.wait_for_run(run.dag_id, run.run_id)
        task = self.task(run)
        try:
            result = self.airflow.xcom(run.dag_id, run.run_id, TASK_ID)
        except LocalAirflowError:
            result = None
        jobs: dict[str, list[int]] = {reference: [] for reference in run.references}
        for job in self.service.jobs:
            reference = job["customerReference"]
            if reference in jobs:
                jobs[reference].append(job["id"])
        log = self.airflow.task_log(run.dag_id, run.run_id, TASK_ID)
        return Report(task["state"], task["try_number"], log, result, jobs)

    def clear(self, runs: Iterable[Run]) -> None:
        """Have the tasks run again."""
        for run in runs:
            self.airflow.clear(run.dag_id, run.run_id, [TASK_ID])

    def task(self, run: Run) -> dict[str, Any]:
        """Give the task as Airflow's API does."""
        path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{TASK_ID}"
        return dict(self.airflow.api("GET", path))


@dataclass
class Tally:
    """Inputs, by outcome."""

    asked: int = 0
    created: int = 0
    """Said to be created, and that very job is the only one."""
    uncertain_existing: int = 0
    uncertain_missing: int = 0
    not_created: int = 0
    """Said to be not created, or rejected, or nothing definite, and there is none."""
    twice: int = 0
    """More than one job."""
    lost: int = 0
    """No job, and nobody says so."""
    unknown: int = 0
    """One job that nobody knows of."""
    wrong: int = 0
    """Something else is said than what is."""

    @classmethod
    def from_reports(cls, reports: Iterable[Report]) -> Self:
        """Compare what the tasks say of each input with the jobs that the service holds."""
        tally = cls()
        for report in reports:
            outcomes = defaultdict(list)
            for outcome in report.result or []:
                outcomes[outcome["customerReference"]].append(outcome)
            for reference, jobs in report.jobs.items():
                kind = tally._kind(jobs, outcomes.pop(reference, []))
                setattr(tally, kind, getattr(tally, kind) + 1)
                tally.asked += 1
            tally.wrong += len(outcomes)
        return tally

    @staticmethod
    def _kind(jobs: list[int], outcomes: list[dict[str, Any]]) -> str:
        if len(jobs) > 1:
            return "twice"
        if not outcomes:
            return "unknown" if jobs else "lost"
        if len(outcomes) > 1:
            return "wrong"
        (outcome,) = outcomes
        match outcome["outcome"]:
            case "created" | "existing" if jobs == [outcome["jobID"]]:
                return "created"
            case "created" | "existing" if not jobs:
                return "lost"
            case "uncertain":
                return "uncertain_existing" if jobs else "uncertain_missing"
            case "not_created" | "rejected" | "unknown" if not jobs:
                return "not_created"
        return "wrong"


def main() -> int:
    """Kill both sides and print the outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.kills", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="seed of the random kills"
    )
    parser.add_argument(
        "--runs", type=int, default=BULK_RUNS, help="random kills (default: %(default)s)"
    )
    options = parser.parse_args()
    end_on_signals()
    with (
        tempfile.TemporaryDirectory(prefix="fsm-kills-") as folder,
        staged(Path(folder), OURS, CONTROL, stores=available(STORES)) as stage,
    ):
        _kill_at_points(stage)
        _kill_at_random(stage, options.seed, options.runs)
    return 0


Side = tuple[str, str]
"""A DAG, and the connection whose ledger it uses."""


def _sides(
    stage: Stage,
    dag_id: str,
    name: str,
    control_id: str,
    control_name: str,
) -> dict[Side, str]:
    """Name ours with each store that is there, and the control."""
    sides: dict[Side, str] = {}
    for store, fsm_conn_id in STORES.items():
        is_there = f"AIRFLOW_CONN_{fsm_conn_id.upper()}" in stage.ledgers.env
        if is_there:
            sides[dag_id, fsm_conn_id] = f"{name}, ledger in {store}"
    sides[control_id, "fsm_default"] = control_name
    return sides


def _kill_at_points(stage: Stage) -> None:
    sides = _sides(stage, "kills_one", "`FsmCreateJobOperator`", "control_one", "`HttpOperator`")
    runs: dict[tuple[Side, str], Run] = {}
    with stage.quiet():
        for point in POINTS:
            for side in sides:
                dag_id, fsm_conn_id = side
                runs[side, point] = stage.start_one(dag_id, point, "task", fsm_conn_id)
    retried = dict(zip(runs, stage.finish(runs.values()), strict=True))
    with stage.quiet():
        stage.clear(runs.values())
    cleared = dict(zip(runs, stage.finish(runs.values()), strict=True))
    _print_row("killed", "", "retried", "then cleared")
    _print_row("---", "---", "---", "---")
    for point in POINTS:
        for side, name in sides.items():
            after_retry = _in_words(retried[side, point])
            after_clearing = _in_words(cleared[side, point])
            _print_row(point, name, after_retry, after_clearing)


def _in_words(report: Report) -> str:
    count = len(report.job_ids)
    jobs = "1 job" if count == 1 else f"{count} jobs"
    uncertain = ", says that it is uncertain" if UNCERTAIN in report.log else ""
    return f"{jobs}, {report.state}{uncertain}"


def _kill_at_random(stage: Stage, seed: int, number: int) -> None:
    sides = _sides(
        stage,
        "kills_bulk",
        "`FsmCreateJobsOperator`",
        "control_bulk",
        "`HttpHook` in a loop",
    )
    columns = [column.name for column in fields(Tally)]
    titles = [column.replace("_", " ") for column in columns]
    print(f"\n{number} random kills each, {BULK_JOBS} jobs a run, seed {seed}:\n")
    _print_row("", *titles)
    _print_row("---", *["---"] * len(titles))
    for (dag_id, fsm_conn_id), name in sides.items():
        runs: list[Run] = []
        with stage.quiet():
            for kill in random_kills(seed, number):
                runs += stage.start_bulk(dag_id, kill, fsm_conn_id)
        tally = Tally.from_reports(stage.finish(runs))
        counts = [getattr(tally, column) for column in columns]
        _print_row(name, *counts)


def _print_row(*cells: object) -> None:
    texts = [str(cell) for cell in cells]
    print(f"| {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
