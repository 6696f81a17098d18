"""Wall time of creating many jobs in a task of a real Airflow, some at once, with each ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.case import BenchmarkError, Extent, Goal, Round, Row, Tasks, values_of
from tests.benchmarks.server import TOKEN, Service
from tests.distributed.backends import postgresql
from tests.system.local_airflow import LocalAirflow

_LATENCY_MS = 50
_AT_ONCE = 8
_LABELS = {
    "sqlite": "FsmCreateJobsOperator, ledger in SQLite",
    "postgresql": "FsmCreateJobsOperator, ledger in PostgreSQL",
    "airflow": "FsmCreateJobsOperator, ledger in Airflow's state store",
}
_GOALS = {
    "sqlite": Goal(at_most=1.1),
    "postgresql": Goal(at_most=1.1),
    "airflow": Goal(at_most=1.3),
}


def tasks(extent: Extent, port: int) -> Tasks:
    return {"airflow": {"port": port, "count": extent.jobs}}


def measure(port: int, count: int) -> dict[str, float]:
    """Create so many jobs in each way, one after the other; give the seconds that the task took."""
    fsm = {
        "conn_type": "fsm",
        "host": Service(port).url(0, 0, _LATENCY_MS),
        "password": TOKEN,
    }
    with_sqlite = {**fsm, "extra": {"state_conn_id": "sqlite"}}
    with_postgresql = {**fsm, "extra": {"state_conn_id": "postgresql"}}
    dags = Path(__file__).with_name("dags")
    # PostgreSQL waits for its disk.
    with TemporaryDirectory(prefix="fsm-bench-") as home, postgresql(sync=True) as url:
        sqlite = {"conn_type": "sqlite", "host": f"{home}/ledger.db"}
        env = {
            "AIRFLOW_CONN_SQLITE": json.dumps(sqlite),
            "AIRFLOW_CONN_POSTGRESQL": f"postgres://{url}",
            "AIRFLOW_CONN_FSM_BENCH": json.dumps(fsm),
            "AIRFLOW_CONN_FSM_BENCH_SQLITE": json.dumps(with_sqlite),
            "AIRFLOW_CONN_FSM_BENCH_POSTGRESQL": json.dumps(with_postgresql),
        }
        with LocalAirflow(dags, Path(home) / "airflow", env) as airflow:
            return {dag_id: _seconds(airflow, dag_id, count) for dag_id in _LABELS}


def _seconds(airflow: LocalAirflow, dag_id: str, count: int) -> float:
    conf = {"count": count, "at_once": _AT_ONCE}
    run_id = airflow.trigger(dag_id, conf)
    if airflow.wait_for_run(dag_id, run_id) != "success":
        raise BenchmarkError(f"{dag_id} {conf}: {airflow.task_states(dag_id, run_id)}")
    return float(airflow.xcom(dag_id, run_id, "create", key="seconds"))


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = f"{extent.jobs:,} jobs of {_LATENCY_MS} ms, {_AT_ONCE} at once, in one task"
    limit = extent.jobs * _LATENCY_MS / 1000 / _AT_ONCE
    table: list[Row] = []
    for dag_id, label in _LABELS.items():
        seconds = values_of(rounds, "airflow", dag_id)
        times_limit = [value / limit for value in seconds]
        ratio = f"{label} / (jobs x latency / at once)"
        table.append(Row(section, ratio, "x", times_limit, _GOALS[dag_id]))
    return table
