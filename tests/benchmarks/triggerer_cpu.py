"""What the triggerer of a real Airflow costs, idle and with a thousand deferred sensors.

One sensor defers by itself; the others are copies of its rows in Airflow's database, which is all that the
triggerer sees of a task.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tests.benchmarks.case import Case, Extent
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import TOKEN, Service
from tests.system.local_airflow import LocalAirflow

_DAG = "form_sensor"
_FIRST_JOB = 10_000_000
_FORM_EVERY = 10.0
_WARM_UP_SECONDS = 30.0
_MAX_SECONDS = 300.0
_CAPACITY = 1000
"""The capacity of a triggerer, unless it is configured."""


def measure(port: int, waits: int, seconds: float) -> dict[str, float]:
    """Measure the triggerer's processes, idle and with that many waits that poll once a second."""
    with (
        TemporaryDirectory(prefix="fsm-bench-") as home,
        LocalAirflow(Path(__file__).with_name("dags"), Path(home)) as airflow,
    ):
        airflow.wait_for_dag(_DAG)
        time.sleep(_WARM_UP_SECONDS)
        idle = cpu_of_triggerer(airflow, seconds)
        service = Service(port)
        host = service.growing(time.time(), _FORM_EVERY)
        airflow.add_connection(_DAG, {"conn_type": "fsm", "host": host, "password": TOKEN})
        airflow.trigger(_DAG, {"sensors": 1, "first_job": _FIRST_JOB})
        database = Path(home) / "airflow.db"
        _wait_for(database, "select count(*) from task_instance where state = 'deferred'", 1)
        _multiply(database, waits)
        _wait_for(database, "select count(*) from trigger where triggerer_id is not null", waits)
        time.sleep(_WARM_UP_SECONDS)
        before = service.counts().requests
        waiting = cpu_of_triggerer(airflow, seconds)
        requests = (service.counts().requests - before) / seconds
        _wait_for(database, "select count(*) from trigger where triggerer_id is not null", waits)
    return {"idle": idle, "waiting": waiting, "requests": requests}


def cpu_of_triggerer(airflow: LocalAirflow, seconds: float) -> float:
    """Give the share of a core, in percent, that the triggerer's processes take for some seconds."""
    leader = psutil.Process(airflow.processes["triggerer"].pid)
    processes = [leader, *leader.children(recursive=True)]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds * 100


def _wait_for(database: Path, count: str, wanted: int) -> None:
    deadline = time.monotonic() + _MAX_SECONDS
    while True:
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            (found,) = connection.execute(count).fetchone()
        if found == wanted:
            return
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{count}: {found} instead of {wanted}")
        time.sleep(1)


def _multiply(database: Path, waits: int) -> None:
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.row_factory = sqlite3.Row
        task = dict(connection.execute("select * from task_instance where state = 'deferred'").fetchone())
        found = connection.execute("select * from trigger where id = ?", [task["trigger_id"]]).fetchone()
        trigger = dict(found) | {"triggerer_id": None}
        del trigger["id"]
        for number in range(1, waits):
            copied = _insert(connection, "trigger", trigger)
            changed = {"id": uuid.uuid4().hex, "map_index": number, "trigger_id": copied}
            _insert(connection, "task_instance", task | changed)


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> int | None:
    columns, values = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    statement = f"insert into {table} ({columns}) values ({values})"
    return connection.execute(statement, list(row.values())).lastrowid


def _tasks(extent: Extent, port: int) -> list[Task]:
    arguments = {"port": port, "waits": _waits(extent), "seconds": 2 * extent.wait_seconds}
    return [Task("triggerer", "triggerer_cpu:measure", arguments)]


def _waits(extent: Extent) -> int:
    return min(extent.waits[-1], _CAPACITY)


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = f"the triggerer of a real Airflow, {_waits(extent):,} deferred sensors, a poll each second"
    measured = [one["triggerer"] for one in rounds]
    over_idle = [one["waiting"] / one["idle"] for one in measured]
    return [
        Row(section, "CPU, idle", "% core", [one["idle"] for one in measured]),
        Row(section, "CPU, all wait", "% core", [one["waiting"] for one in measured]),
        Row(section, "CPU, all wait / idle", "x", over_idle, Goal(at_most=2)),
        Row(section, "requests a second", "", [one["requests"] for one in measured], Goal(at_most=1.1)),
    ]


CASE = Case(_tasks, _rows)
