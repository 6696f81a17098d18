"""From the completion of a form to the success of the task that waits for it, on a real Airflow.

Also what the triggerer's processes cost there: before there is a wait, and while all wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.case import Case, Extent
from tests.benchmarks.results import Round, Row
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import TOKEN, Service
from tests.benchmarks.triggerer_cpu import cpu_of_triggerer
from tests.system.local_airflow import LocalAirflow

_FORMS = "form_sensor"
_LABELS = {
    _FORMS: "FsmFormSensor, deferred and shared, 1 s",
    "http_sensor": "HttpSensor, reschedule mode, Airflow's default of 60 s",
}
_KINDS = {_FORMS: "fsm", "http_sensor": "http"}
_WAITING = {"deferred", "up_for_reschedule"}
_EVERY = 2.3
"""Seconds between two forms: no multiple of an interval, and time for the process of a task to run."""
_WARM_UP_SECONDS = 25.0
"""From when all wait: until the triggerer has them, and may fire (``MIN_DEFERRAL``)."""
_CPU_SECONDS = 10.0
_FIRED = "Trigger fired event"


def measure(port: int, sensors: int) -> dict[str, Any]:
    """Give the seconds that each form took: until its task was a success, and until its trigger fired."""
    with (
        TemporaryDirectory(prefix="fsm-bench-") as home,
        LocalAirflow(Path(__file__).with_name("dags"), Path(home)) as airflow,
    ):
        for dag_id in _LABELS:
            airflow.wait_for_dag(dag_id)
        idle = cpu_of_triggerer(airflow, _CPU_SECONDS)
        return {"idle": idle} | {
            dag_id: _measured(airflow, Service(port), dag_id, sensors) for dag_id in _LABELS
        }


def _measured(airflow: LocalAirflow, service: Service, dag_id: str, sensors: int) -> dict[str, Any]:
    service.start(None)
    connection = {"conn_type": _KINDS[dag_id], "host": service.growing(0, _EVERY), "password": TOKEN}
    airflow.add_connection(dag_id, connection)
    run_id = airflow.trigger(dag_id, {"sensors": sensors})
    airflow.wait_for_tasks(dag_id, run_id, lambda states: _waiting(states) == sensors, timeout=300)
    time.sleep(_WARM_UP_SECONDS)
    measured: dict[str, Any] = {}
    if dag_id == _FORMS:
        before = service.counts().requests
        measured["core"] = cpu_of_triggerer(airflow, _CPU_SECONDS)
        measured["requests"] = (service.counts().requests - before) / _CPU_SECONDS
    start = time.time()
    service.start(start)
    if airflow.wait_for_run(dag_id, run_id, timeout=600) != "success":
        raise BenchmarkError(f"{dag_id}: {airflow.task_states(dag_id, run_id)}")
    completed = [int(start * 1000) / 1000 + _EVERY * job for job in range(1, sensors + 1)]
    ended = _ends(airflow, dag_id, run_id)
    measured["success"] = _less(ended, completed)
    if dag_id == _FORMS:
        fired = [_fired(airflow, dag_id, run_id, number) for number in range(sensors)]
        measured |= {"fired": _less(fired, completed), "airflow": _less(ended, fired)}
    return measured


def _waiting(states: Mapping[str, str | None]) -> int:
    return sum(name.startswith("wait[") and state in _WAITING for name, state in states.items())


def _ends(airflow: LocalAirflow, dag_id: str, run_id: str) -> list[float]:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
    found = airflow.api("GET", path, params={"limit": 100, "task_id": "wait"})["task_instances"]
    ends = {task["map_index"]: task["end_date"] for task in found if task["task_id"] == "wait"}
    return [datetime.fromisoformat(ends[number]).timestamp() for number in sorted(ends)]


def _fired(airflow: LocalAirflow, dag_id: str, run_id: str, number: int) -> float:
    log = airflow.task_log(dag_id, run_id, "wait", map_index=number)
    times = [line.split()[0] for line in log.splitlines() if _FIRED in line]
    if len(times) != 1:
        raise BenchmarkError(f"{dag_id}, {number}: the log has {len(times)} events:\n{log}")
    return datetime.fromisoformat(times[0]).timestamp()


def _less(later: list[float], earlier: list[float]) -> list[float]:
    gone = [one - other for one, other in zip(later, earlier, strict=True)]
    if min(gone) < 0:
        raise BenchmarkError(f"found before it was there: {gone}")
    return gone


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [Task("airflow", "detection:measure", {"port": port, "sensors": extent.sensors})]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    measured = [one["airflow"] for one in rounds]
    section = f"from a form's completion to its task's success, {extent.sensors} sensors"
    shown = [(dag_id, "success", label) for dag_id, label in _LABELS.items()]
    shown += [
        (_FORMS, "fired", "of FsmFormSensor's, until the trigger fires"),
        (_FORMS, "airflow", "of FsmFormSensor's, Airflow's part: from there to the success"),
    ]
    rows = [
        Row(section, f"{label}, {name}", "s", [pick(one[dag_id][part]) for one in measured])
        for dag_id, part, label in shown
        for name, pick in (("p50", median), ("p95", _p95))
    ]
    section = f"the triggerer's processes in that Airflow, {extent.sensors} sensors"
    idle, waiting = [one["idle"] for one in measured], [one[_FORMS]["core"] for one in measured]
    requests = [one[_FORMS]["requests"] for one in measured]
    return [
        *rows,
        Row(section, "CPU, nothing waits", "% core", idle),
        Row(section, "CPU, all wait, deferred and shared", "% core", waiting),
        Row(section, "requests a second", "", requests),
    ]


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


CASE = Case(_tasks, _rows)
