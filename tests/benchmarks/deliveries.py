"""Signed deliveries to an API server with two workers: none is lost, none is an event twice."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import requests
from sqlalchemy import create_engine, text

from fsm_provider.testing.delivering import standard_webhooks
from tests.benchmarks.case import BenchmarkError, Extent, Round, Row, Tasks, values_of
from tests.distributed.backends import postgresql
from tests.system.local_airflow import LocalAirflow

A_SECOND = 150
_THREADS = 32
_ATTEMPTS = 20
_REPEATED = 20
"""Each delivery of this number is sent again although it was accepted, as senders do."""
_TOKEN = "t" * 43
_SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()
_BACKENDS = ("SQLite", "PostgreSQL")
_VARIABLES = {
    "fsm_webhooks": {"endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}}},
    "fsm_webhook_secret_tokens_fsm_default_jobs": [_TOKEN],
    "fsm_webhook_secrets_fsm_default_jobs": [_SECRET],
}


def tasks(extent: Extent, port: int) -> Tasks:
    return {backend: {"backend": backend, "count": extent.deliveries} for backend in _BACKENDS}


@contextmanager
def _database(backend: str, home: str) -> Iterator[str]:
    """Give the URL of Airflow's database."""
    if backend == "SQLite":
        yield f"sqlite:///{home}/airflow/airflow.db"
        return
    with postgresql(sync=True) as server:
        yield f"postgresql+psycopg2://{server}"


def measure(backend: str, count: int) -> dict[str, float]:
    """Deliver so many; give the share asked to retry, and the p99 of seconds until a 200."""
    with TemporaryDirectory(prefix="fsm-bench-") as home, _database(backend, home) as url:
        env = {
            "AIRFLOW__API__WORKERS": "2",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        }
        dags = Path(__file__).with_name("dags")
        with LocalAirflow(dags, Path(home, "airflow"), env) as airflow:
            for name, value in _VARIABLES.items():
                airflow.set_variable(name, value)
            sender = _Sender(f"{airflow.base_url}/fsm/webhooks/fsm_default/jobs/{_TOKEN}")
            sender.wait_until_accepted()
            start = time.monotonic() + 0.5
            with ThreadPoolExecutor(_THREADS) as threads:
                at = [start + number / A_SECOND for number in range(count)]
                taken = sorted(threads.map(sender.deliver, range(1, count + 1), at))
        events = _events_by_job(url)
    lost = count + 1 - len(events)
    twice = sum(number > 1 for number in events.values())
    if lost or twice:
        raise BenchmarkError(f"{backend}: of {count} deliveries {lost} lost, {twice} twice")
    return {
        "retried": sender.retried / count,
        "p99": taken[int(count * 0.99)],
    }


def _events_by_job(database: str) -> Counter[int]:
    engine = create_engine(database)
    events: Counter[int] = Counter()
    with engine.connect() as connection:
        for extra in connection.execute(text("SELECT extra FROM asset_event")).scalars():
            # SQLite gives it as text.
            event = json.loads(extra) if isinstance(extra, str) else extra
            events[event["id"]] += 1
    engine.dispose()
    return events


class _Sender:
    def __init__(self, url: str) -> None:
        self.retried = 0
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=_THREADS))

    def wait_until_accepted(self) -> None:
        """Deliver one, once the DAG's asset is known."""
        deadline = time.monotonic() + 60
        while self._post(0) != 200:
            if time.monotonic() > deadline:
                raise BenchmarkError("the receiver accepts nothing")
            time.sleep(0.5)

    def deliver(self, number: int, at: float) -> float:
        """Deliver at a time; give the seconds until it was accepted."""
        time.sleep(max(0.0, at - time.monotonic()))
        self._until_accepted(number)
        taken = time.monotonic() - at
        if number % _REPEATED == 0:
            self._until_accepted(number)
        return taken

    def _until_accepted(self, number: int) -> None:
        for _ in range(_ATTEMPTS):
            if self._post(number) == 200:
                return
            self.retried += 1
            time.sleep(1)
        raise BenchmarkError(f"delivery {number} was refused {_ATTEMPTS} times")

    def _post(self, number: int) -> int:
        body = json.dumps({"type": "jobs.created", "data": {"id": number}}).encode()
        headers = standard_webhooks(_SECRET, f"msg_{number}", int(time.time()), body)
        response = self._session.post(self._url, data=body, headers=headers, timeout=30)
        return response.status_code


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    table: list[Row] = []
    for backend in _BACKENDS:
        section = f"{extent.deliveries:,} deliveries, {A_SECOND} a second, two workers, {backend}"
        retried = [100 * share for share in values_of(rounds, backend, "retried")]
        seconds = values_of(rounds, backend, "p99")
        table.append(Row(section, "asked to retry, %", "%", retried))
        table.append(Row(section, "until it is accepted, p99", "s", seconds))
    return table
