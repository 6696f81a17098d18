"""Wall time of creating many jobs in a task of a real Airflow, some at once, with each ledger and without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.case import BenchmarkError, Extent, Goal, Round, Row, Tasks
from tests.benchmarks.server import TOKEN, Service
from tests.distributed.backends import postgresql
from tests.system.local_airflow import LocalAirflow

_LATENCY_MS = 50
_AT_ONCE = (1, 8, 32)
_LABELS = {
    "no_ledger": "FsmCreateJobsOperator without a ledger",
    "sqlite": "FsmCreateJobsOperator, ledger in SQLite",
    "postgresql": "FsmCreateJobsOperator, ledger in PostgreSQL",
    "airflow": "FsmCreateJobsOperator, ledger in Airflow's state store",
}
_GOALS = {"sqlite": Goal(at_most=1.1), "postgresql": Goal(at_most=1.1), "airflow": Goal(at_most=1.3)}
_GOALS_AT_ONCE = 8


def tasks(extent: Extent, port: int) -> Tasks:
    return {"airflow": {"port": port, "count": extent.jobs}}


def measure(port: int, count: int) -> dict[str, float]:
    """Create so many jobs in each way, one after the other; give the seconds that the task took."""
    fsm = {"conn_type": "fsm", "host": Service(port).url(0, 0, _LATENCY_MS), "password": TOKEN}
    # PostgreSQL waits for its disk.
    with TemporaryDirectory(prefix="fsm-bench-") as home, postgresql(sync=True) as url:
        env = {
            "AIRFLOW_CONN_SQLITE": json.dumps({"conn_type": "sqlite", "host": f"{home}/ledger.db"}),
            "AIRFLOW_CONN_POSTGRESQL": f"postgres://{url}",
            "AIRFLOW_CONN_FSM_BENCH": json.dumps(fsm),
            "AIRFLOW_CONN_FSM_BENCH_SQLITE": json.dumps({**fsm, "extra": {"state_conn_id": "sqlite"}}),
            "AIRFLOW_CONN_FSM_BENCH_POSTGRESQL": json.dumps(
                {**fsm, "extra": {"state_conn_id": "postgresql"}}
            ),
        }
        with LocalAirflow(Path(__file__).with_name("dags"), Path(home) / "airflow", env) as airflow:
            return {
                # Each run has properties of its own: to a ledger, a job that comes twice would be in doubt.
                f"{dag_id} {at_once}": _seconds(airflow, dag_id, at_once, number * count, count)
                for dag_id in _LABELS
                for number, at_once in enumerate(_AT_ONCE)
            }


def _seconds(airflow: LocalAirflow, dag_id: str, at_once: int, first: int, count: int) -> float:
    conf = {"first": first, "count": count, "at_once": at_once}
    run_id = airflow.trigger(dag_id, conf)
    if airflow.wait_for_run(dag_id, run_id) != "success":
        raise BenchmarkError(f"{dag_id} {conf}: {airflow.task_states(dag_id, run_id)}")
    return float(airflow.xcom(dag_id, run_id, "create", key="seconds"))


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    measured = [one["airflow"] for one in rounds]
    found = []
    for at_once in _AT_ONCE:
        section = f"{extent.jobs:,} jobs of {_LATENCY_MS} ms, {at_once} at once, in one task"
        limit = extent.jobs * _LATENCY_MS / 1000 / at_once
        for dag_id, label in _LABELS.items():
            over = [one[f"{dag_id} {at_once}"] / limit for one in measured]
            goal = _GOALS.get(dag_id) if at_once == _GOALS_AT_ONCE else None
            found.append(Row(section, f"{label} / (jobs x latency / at once)", "x", over, goal))
    for dag_id in _GOALS:
        costs = [(one[f"{dag_id} 1"] - one["no_ledger 1"]) * 1000 / extent.jobs for one in measured]
        found.append(Row("cost of the ledger a job, one at a time", _LABELS[dag_id], "ms", costs))
    return found
