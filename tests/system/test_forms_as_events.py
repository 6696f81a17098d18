"""Forms as events on a real Airflow: the watcher of an asset, and many sensors on one stream."""

import re
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.dags.watched import WATCHED_NAME
from tests.system.local_airflow import LocalAirflow

DAG_ID = "watched_records"
WAITS = 120
job_ids = count(800_001, 1000)


def told(airflow: LocalAirflow) -> list[list[int]]:
    """The forms of each run that the asset started, in order."""
    path = f"/dags/{DAG_ID}/dagRuns"
    runs = airflow.api("GET", path, params={"limit": 100, "order_by": "run_after"})["dag_runs"]
    ended = [run["dag_run_id"] for run in runs if run["state"] == "success"]
    return [[form["id"] for form in airflow.xcom(DAG_ID, run_id, "read")] for run_id in ended]


def add(service: FakeFieldService, how_many: int = 1) -> list[int]:
    return [service.add_form(form_name=WATCHED_NAME)["id"] for _ in range(how_many)]


def until(predicate: Callable[[], bool], timeout: float = 180.0) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            pytest.fail(f"not the case after {timeout:g} s")
        time.sleep(0.5)


def sweeps(service: FakeFieldService, more: int = 3) -> None:
    """Wait until the watcher has swept again."""
    seen = len(service.requests)
    service.wait_for(lambda: len(service.requests) >= seen + more, timeout=120)


@pytest.fixture
def watched(airflow: LocalAirflow, watched_service: FakeFieldService) -> FakeFieldService:
    """The service, asked by a watcher that has its first sweep behind it."""
    airflow.wait_for_dag(DAG_ID)
    sweeps(watched_service)
    return watched_service


def test_new_forms_start_a_run_and_history_does_not(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    added = add(watched, 3)

    until(lambda: set(added) <= {form for run in told(airflow) for form in run})

    history = {form["id"] for form in watched.forms} - set(added)
    assert history.isdisjoint(form for run in told(airflow) for form in run)


def test_a_burst_reaches_the_runs_whole_and_once(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    added = add(watched, 250)

    until(lambda: set(added) <= {form for run in told(airflow) for form in run})

    seen = Counter(form for run in told(airflow) for form in run)
    assert {seen[form] for form in added} == {1}
    assert max(map(len, told(airflow))) <= 100


@pytest.mark.parametrize("moment", ["waiting", "after a sweep that found it", "after its event"])
def test_a_killed_triggerer_loses_no_form(
    airflow: LocalAirflow, watched: FakeFieldService, moment: str
) -> None:
    if moment == "waiting":
        airflow.kill("triggerer")
        (form,) = add(watched)
    else:
        before = runs(airflow)
        (form,) = add(watched)
        if moment == "after its event":
            until(lambda: runs(airflow) > before, timeout=60)
        else:
            sweeps(watched, 1)
        airflow.kill("triggerer")
    airflow.restart("triggerer")

    (after,) = add(watched)
    until(lambda: {form, after} <= {form for run in told(airflow) for form in run})

    seen = Counter(form for run in told(airflow) for form in run)
    print(f"killed {moment}: the form was told of {seen[form]} times")
    assert seen[form] <= 2
    assert seen[after] == 1


def runs(airflow: LocalAirflow) -> int:
    return int(airflow.api("GET", f"/dags/{DAG_ID}/dagRuns")["total_entries"])


def test_many_deferred_sensors_share_a_request_and_each_gets_its_own_form(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    first = next(job_ids)
    run_id = airflow.trigger("many_waits", {"first_job_id": first, "jobs": WAITS})

    def states() -> Counter:
        return Counter(airflow.task_states("many_waits", run_id).values())

    until(lambda: states()["deferred"] == WAITS, timeout=400)
    with watched.refuse_connections():
        time.sleep(20)
    sweeps(watched, 10)
    queries = [dict(request.query) for request in watched.requests[-10:]]
    assert all("jobID" not in query for query in queries)
    forms = {number: watched.add_form(job_id=first + number)["id"] for number in range(WAITS - 1)}
    until(lambda: states()["success"] == WAITS and states()["deferred"] == 1, timeout=300)
    last = watched.add_form(job_id=first + WAITS - 1)["id"]

    assert airflow.wait_for_run("many_waits", run_id, timeout=120) == "success"
    for number, form in {**forms, WAITS - 1: last}.items():
        (reference,) = airflow.xcom("many_waits", run_id, "wait", map_index=number)
        assert reference["id"] == form
    log = (airflow.home / "scheduler.log").read_text()
    assert re.findall(r"task_id='wait'.*finished with state success, but.*", log) == []
    assert "finished with state success, but" not in log
