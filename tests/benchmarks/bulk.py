"""Wall time of creating many jobs, some at once, with the ledger and without, in a task of a real Airflow.

And without Airflow, where responses come at once: what a ledger of many rows costs, and to find a job in it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.benchmarks import connections, pages
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import TOKEN, Service
from tests.distributed.backends import postgresql
from tests.system.local_airflow import LocalAirflow

_LATENCY_MS = 50
_AT_ONCE = (1, 8, 32)
_MAPPED_JOBS = 40
"""Mapped tasks are measured over few jobs: each is a process."""
_PARALLEL_TASKS = 4
_LABELS = {
    "ledger": "FsmCreateJobsOperator",
    "ledger_sqlite": "FsmCreateJobsOperator, ledger in SQLite",
    "ledger_postgresql": "FsmCreateJobsOperator, ledger in PostgreSQL",
    "no_ledger": "FsmCreateJobsOperator without a ledger",
    "http_hook": "HttpHook in threads",
}


class _Run(NamedTuple):
    dag_id: str
    at_once: int

    @property
    def key(self) -> str:
        return f"{self.dag_id} {self.at_once}"


_LEDGERS = [dag_id for dag_id in _LABELS if dag_id.startswith("ledger")]
_GOALS = {
    _Run("ledger", 8): Goal(at_most=1.3),
    _Run("ledger_sqlite", 8): Goal(at_most=1.1),
    _Run("ledger_postgresql", 8): Goal(at_most=1.1),
}
_ROWS_AT_ONCE = 16
_SENT_GOAL, _AGAIN_GOAL, _FOUND_GOAL = Goal(at_most=15.0), Goal(at_most=3.0), Goal(at_most=5.0)
_FACTOR = 10
"""A job is looked up among so many times the rows."""
_LOOK_UPS = 100
_COST_GOAL = Goal(at_most=3.0)


_RUNS = [_Run(dag_id, at_once) for dag_id in _LABELS for at_once in _AT_ONCE]


def measure(port: int, count: int) -> dict[str, float]:
    """Create so many jobs in each way, one after the other; give the seconds that the task took.

    Of mapped tasks: the seconds that the run took, for each job.
    """
    service = {"host": Service(port).listing(0, 0, _LATENCY_MS), "password": TOKEN}
    fsm = {"conn_type": "fsm", **service}
    env = {
        "AIRFLOW_CONN_FSM_BENCH": json.dumps(fsm),
        **{
            f"AIRFLOW_CONN_FSM_BENCH_{name}": json.dumps({**fsm, "extra": {"state_conn_id": name.lower()}})
            for name in ("SQLITE", "POSTGRESQL")
        },
        "AIRFLOW_CONN_HTTP_BENCH": json.dumps({"conn_type": "http", **service}),
        "AIRFLOW__CORE__PARALLELISM": str(_PARALLEL_TASKS),
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": str(_PARALLEL_TASKS),
    }
    with (
        TemporaryDirectory(prefix="fsm-bench-") as home,
        _databases(Path(home)) as databases,
        LocalAirflow(Path(__file__).with_name("dags"), Path(home) / "airflow", env | databases) as airflow,
    ):
        seconds = {run.key: _measured(airflow, run, count) for run in _RUNS}
        run_id = _succeed(airflow, "http_operator", {"first": 0, "count": _MAPPED_JOBS})
        tasks = airflow.api("GET", f"/dags/http_operator/dagRuns/{run_id}/taskInstances")["task_instances"]
        mapped = [task for task in tasks if task["task_id"] == "create"]
        return seconds | {"http_operator": _span(mapped) / _MAPPED_JOBS}


def measure_rows(port: int, count: int) -> dict[str, float]:
    """Create so many jobs with a ledger in SQLite, in this process, and ask again; give the seconds."""
    from fsm_provider.operators.jobs import FsmCreateJobsOperator
    from tests.unit.state_store import TaskInstance

    jobs = [{"property_id": number, "job": pages.job_payload(number)} for number in range(count)]
    operator = FsmCreateJobsOperator(
        task_id="create", fsm_conn_id="bench", jobs=jobs, max_concurrency=_ROWS_AT_ONCE
    )

    def seconds(expected: str) -> float:
        start = time.perf_counter()
        outcomes = operator.execute({"ti": TaskInstance()})
        taken = time.perf_counter() - start
        if [(one["jobID"], one["outcome"]) for one in outcomes] != [
            (pages.job_id(number), expected) for number in range(count)
        ]:
            raise BenchmarkError(f"not all jobs are {expected}")
        return taken

    with TemporaryDirectory(prefix="fsm-bench-") as folder:
        fsm = {"conn_type": "fsm", "host": Service(port).listing(0, 0), "password": TOKEN}
        ledger = {"conn_type": "sqlite", "host": f"{folder}/ledger.db"}
        connections.provide(fsm | {"extra": {"state_conn_id": "ledger"}}, ledger=ledger)
        measured = {"sent": seconds("created"), "again": seconds("existing")}
        return measured | {"found": _seconds_to_find(count * _FACTOR)}


def _seconds_to_find(count: int) -> float:
    """Give the longest of some look-ups of a job by its id, each in a transaction of its own."""
    from fsm_provider.state.database import open_database
    from fsm_provider.state.task import Task
    from fsm_provider.writes.ledger import Write
    from fsm_provider.writes.sql_ledger import SqlLedger

    ledger, task = SqlLedger(open_database("ledger"), "https://many.example", ""), Task("dag", "run", "task")
    writes = [Write(method="POST", path="/", content=n, key=f"PO-{n}", kind="job") for n in range(count)]
    ledger.plan([replace(one.planned(task), state="done", result={"id": one.content}) for one in writes])
    taken = []
    for number in random.Random(count).sample(range(count), _LOOK_UPS):
        start = time.perf_counter()
        key = ledger.holder_of(number)
        taken.append(time.perf_counter() - start)
        if key != f"PO-{number}":
            raise BenchmarkError(f"job {number} is that of {key}")
    ledger.close()
    return max(taken)


@contextmanager
def _databases(folder: Path) -> Iterator[dict[str, str]]:
    """Make the connections of the databases that hold ledgers; PostgreSQL waits for its disk."""
    sqlite = {"conn_type": "sqlite", "host": str(folder / "ledger.db")}
    with postgresql(sync=True) as url:
        yield {
            "AIRFLOW_CONN_SQLITE": json.dumps(sqlite),
            "AIRFLOW_CONN_POSTGRESQL": f"postgres://{url}",
        }


def _measured(airflow: LocalAirflow, run: _Run, count: int) -> float:
    # Each run has properties of its own: to a ledger, a job that comes twice would be in doubt.
    first = _AT_ONCE.index(run.at_once) * count
    run_id = _succeed(airflow, run.dag_id, {"first": first, "count": count, "at_once": run.at_once})
    return float(airflow.xcom(run.dag_id, run_id, "create", key="seconds"))


def _succeed(airflow: LocalAirflow, dag_id: str, conf: dict[str, Any]) -> str:
    run_id = airflow.trigger(dag_id, conf)
    if airflow.wait_for_run(dag_id, run_id, timeout=600) != "success":
        raise BenchmarkError(f"{dag_id} {conf}: {airflow.task_states(dag_id, run_id)}")
    return run_id


def _span(tasks: list[dict[str, Any]]) -> float:
    starts = [datetime.fromisoformat(task["start_date"]) for task in tasks]
    ends = [datetime.fromisoformat(task["end_date"]) for task in tasks]
    return (max(ends) - min(starts)).total_seconds()


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task("airflow", "bulk:measure", {"port": port, "count": extent.jobs}),
        Task("rows", "bulk:measure_rows", {"port": port, "count": extent.rows}),
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    measured = [one["airflow"] for one in rounds]
    rows = [
        Row(
            f"{extent.jobs:,} jobs of {_LATENCY_MS} ms, {run.at_once} at once, in one task",
            f"{_LABELS[run.dag_id]} / (jobs x latency / at once)",
            "x",
            [one[run.key] * 1000 * run.at_once / (extent.jobs * _LATENCY_MS) for one in measured],
            _GOALS.get(run),
        )
        for run in sorted(_RUNS, key=lambda run: run.at_once)
    ]
    rows += [
        Row(
            f"cost of the ledger, {at_once} at once",
            f"{_LABELS[dag_id]}, wall a job",
            "ms",
            [
                (one[f"{dag_id} {at_once}"] - one[f"no_ledger {at_once}"]) * 1000 / extent.jobs
                for one in measured
            ],
            _COST_GOAL if at_once == 1 and dag_id != "ledger" else None,
        )
        for at_once in _AT_ONCE
        for dag_id in _LEDGERS
    ]
    many = [one["rows"] for one in rounds]
    here = f"{extent.rows:,} jobs, {_ROWS_AT_ONCE} at once, responses at once, ledger in SQLite"
    rows += [
        Row(here, "wall", "s", [one["sent"] for one in many], _SENT_GOAL),
        Row(here, "asked again: wall", "s", [one["again"] for one in many], _AGAIN_GOAL),
        Row(
            f"{extent.rows * _FACTOR:,} rows in SQLite",
            f"a job by its id: the slowest of {_LOOK_UPS}",
            "ms",
            [one["found"] * 1000 for one in many],
            _FOUND_GOAL,
        ),
    ]
    mapped = [one["http_operator"] * 1000 for one in measured]
    return [
        *rows,
        Row(f"HttpOperator mapped, {_PARALLEL_TASKS} tasks at once", "wall a job", "ms", mapped),
    ]


CASE = Case(_tasks, _rows)
