"""Planned maintenance on a real Airflow: each row of a due list once, whichever run sees it."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.system.conftest import DAGS
from tests.system.examples import UNPAUSED, WITH_LEDGER, copy
from tests.system.local_airflow import LocalAirflow

DAG_ID = "planned_maintenance_unpaused"
HEAD = "reference,propertyID,due,notes\n"
DUE = "2026-01-05"


@pytest.fixture(scope="module")
def example(airflow: LocalAirflow, dags_folder: Path) -> None:
    """The example and its list, copied and not paused: at once the scheduler starts the run of the day."""
    folder = dags_folder / "planned_maintenance"
    shutil.copytree(DAGS["examples"] / "data", folder / "data")
    copy(airflow, folder, "planned_maintenance_jobs", DAG_ID, by_hand=False, **UNPAUSED, **WITH_LEDGER)


@pytest.fixture
def due_list(example: None, tmp_path: Path) -> Path:
    return tmp_path / "due.csv"


@pytest.fixture
def slow_service(service: FakeFieldService) -> Iterator[FakeFieldService]:
    """The service, which takes some seconds for each response."""
    service.settings.latency = 3.0
    yield service
    service.settings.latency = 0.0


def write(due_list: Path, *properties: int) -> None:
    """Write a list with a row for each property, whose reference is named like it."""
    due_list.write_text(HEAD + "".join(f"PM-{number},{number},{DUE},\n" for number in properties))


def trigger(airflow: LocalAirflow, due_list: Path, *, run_id: str | None = None, **params: object) -> str:
    return airflow.trigger(DAG_ID, {"due_list": str(due_list), **params}, run_id)


def run(airflow: LocalAirflow, due_list: Path, **more: Any) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = trigger(airflow, due_list, **more)
    return run_id, airflow.wait_for_run(DAG_ID, run_id)


def outcomes_of(airflow: LocalAirflow, run_id: str) -> dict[str, str]:
    return {one["key"]: one["outcome"] for one in airflow.xcom(DAG_ID, run_id, "create_jobs")}


def posts_to(service: FakeFieldService, *properties: int) -> list[int]:
    return [len(service.requests_to("POST", f"/properties/{number}/jobs")) for number in properties]


def in_ledger(airflow: LocalAirflow, prefix: str) -> list[str]:
    """Give the keys of the ledger that begin with a prefix."""
    with closing(sqlite3.connect(airflow.home / "fsm_ledger.db")) as database:
        return [key for (key,) in database.execute("SELECT key FROM fsm_ledger") if key.startswith(prefix)]


def test_the_run_of_the_day_creates_what_is_due_and_the_next_one_finds_it(
    airflow: LocalAirflow, service: FakeFieldService, example: None
) -> None:
    scheduled = airflow.first_run(DAG_ID)
    assert airflow.wait_for_run(DAG_ID, scheduled) == "success"
    by_hand = airflow.trigger(DAG_ID)
    assert airflow.wait_for_run(DAG_ID, by_hand) == "success"

    created = [job for job in service.jobs if (job["customerReference"] or "").startswith("PM-2026-")]
    jobs = {job["customerReference"]: job for job in created}
    assert sorted(jobs) == [f"PM-2026-000{number}" for number in range(1, 6)]
    assert len(created) == 5
    assert jobs["PM-2026-0001"]["quotedAmount"] == "120.00"
    assert airflow.xcom(DAG_ID, scheduled, "report") == {"created": 5}
    assert airflow.xcom(DAG_ID, by_hand, "report") == {"existing": 5}
    found = {one["key"]: one["jobID"] for one in airflow.xcom(DAG_ID, by_hand, "create_jobs")}
    assert found == {name: job["id"] for name, job in jobs.items()}
    log = " ".join(airflow.task_log(DAG_ID, by_hand, "report").split())
    first = jobs["PM-2026-0001"]["id"]
    assert f"PM-2026-0001 7 existing {first} by create_jobs of run {scheduled}" in log


def test_a_row_that_is_added_is_all_that_the_next_run_creates(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9011, 9012)
    run(airflow, due_list)
    write(due_list, 9013, 9012, 9011)

    run_id, state = run(airflow, due_list)

    assert state == "success"
    assert outcomes_of(airflow, run_id) == {
        "PM-9013": "created",
        "PM-9012": "existing",
        "PM-9011": "existing",
    }
    assert posts_to(service, 9011, 9012, 9013) == [1, 1, 1]


def test_two_runs_at_the_same_moment_create_nothing_twice(
    airflow: LocalAirflow, slow_service: FakeFieldService, due_list: Path
) -> None:
    numbers = range(9021, 9029)
    write(due_list, *numbers)

    runs = [trigger(airflow, due_list) for _ in range(2)]

    assert [airflow.wait_for_run(DAG_ID, run_id) for run_id in runs] == ["success"] * 2
    assert posts_to(slow_service, *numbers) == [1] * 8
    seen = [outcomes_of(airflow, run_id) for run_id in runs]
    assert [sorted((seen[0][key], seen[1][key])) for key in seen[0]] == [["created", "existing"]] * 8
    logs = [airflow.task_log(DAG_ID, run_id, "create_jobs") for run_id in runs]
    assert any("is sending it: waiting until" in log for log in logs)


def test_a_run_that_is_deleted_and_triggered_again_creates_nothing_twice(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9031, 9032)
    run_id, _ = run(airflow, due_list)

    airflow.api("DELETE", f"/dags/{DAG_ID}/dagRuns/{run_id}")
    _, state = run(airflow, due_list, run_id=run_id)

    assert state == "success"
    assert airflow.xcom(DAG_ID, run_id, "report") == {"existing": 2}
    assert posts_to(service, 9031, 9032) == [1, 1]


@pytest.mark.parametrize("cleared", [["create_jobs"], ["choose_rows", "create_jobs", "report"]])
def test_a_clear_creates_nothing(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path, cleared: list[str]
) -> None:
    number = 9040 + len(cleared)
    write(due_list, number)
    run_id, _ = run(airflow, due_list)

    airflow.clear(DAG_ID, run_id, cleared)

    assert airflow.wait_for_run(DAG_ID, run_id) == "success"
    assert outcomes_of(airflow, run_id) == {f"PM-{number}": "existing"}
    assert posts_to(service, number) == [1]


def test_an_uncertain_row_fails_each_run_and_is_not_sent_again(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9051, 9052, 9053)
    service.fail("POST", "/properties/9052/jobs", faults.Reset(after_handling=True))

    first, first_state = run(airflow, due_list)
    second, second_state = run(airflow, due_list)

    assert (first_state, second_state) == ("failed", "failed")
    states = {"choose_rows": "success", "create_jobs": "failed", "report": "success"}
    assert airflow.task_states(DAG_ID, first) == states
    assert airflow.xcom(DAG_ID, first, "report") == {"created": 2, "uncertain": 1}
    assert airflow.xcom(DAG_ID, second, "report") == {"existing": 2, "uncertain": 1}
    assert posts_to(service, 9051, 9052, 9053) == [1, 1, 1]
    for run_id in (first, second):
        log = " ".join(airflow.task_log(DAG_ID, run_id, "report").split())
        assert "PM-9052 9052 uncertain POST /properties/9052/jobs may or may not have taken effect" in log


def test_a_rejected_row_fails_the_run_and_is_sent_by_the_next(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9061, 9062)
    service.fail("POST", "/properties/9062/jobs", faults.Status(400, {"message": "no such property"}))

    first, first_state = run(airflow, due_list)
    second, second_state = run(airflow, due_list)

    assert (first_state, second_state) == ("failed", "success")
    assert "no such property" in airflow.task_log(DAG_ID, first, "report")
    assert outcomes_of(airflow, first) == {"PM-9061": "created", "PM-9062": "rejected"}
    assert outcomes_of(airflow, second) == {"PM-9061": "existing", "PM-9062": "created"}
    assert posts_to(service, 9061, 9062) == [1, 2]


def test_a_creation_that_is_stopped_is_reported_and_finished_by_the_next_run(
    airflow: LocalAirflow, slow_service: FakeFieldService, due_list: Path
) -> None:
    numbers = range(9071, 9083)
    write(due_list, *numbers)
    run_id = trigger(airflow, due_list)
    airflow.wait_for_tasks(DAG_ID, run_id, lambda states: states.get("create_jobs") == "running")

    airflow.set_task_state(DAG_ID, run_id, "create_jobs", "failed")

    assert airflow.wait_for_run(DAG_ID, run_id) == "failed"
    assert airflow.task_states(DAG_ID, run_id)["report"] == "success"
    _, state = run(airflow, due_list)
    assert state == "success"
    assert posts_to(slow_service, *numbers) == [1] * 12


def test_a_dry_run_sends_nothing_and_stores_nothing(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9121)
    with due_list.open("a") as rows:
        rows.write("PM-9122,9122,2026-01-07,\n")

    run_id, state = run(airflow, due_list, dry_run=True, due_on="2026-01-06")

    assert state == "success"
    assert outcomes_of(airflow, run_id) == {"PM-9121": "valid"}
    assert airflow.xcom(DAG_ID, run_id, "report") == {"valid": 1}
    log = airflow.task_log(DAG_ID, run_id, "create_jobs")
    assert "Dry run: 1 job: 0 created, 1 valid" in log
    assert posts_to(service, 9121, 9122) == [0, 0]
    assert in_ledger(airflow, "PM-912") == []


def test_more_than_max_jobs_are_refused_before_anything_is_sent(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    write(due_list, 9091, 9092)

    run_id, state = run(airflow, due_list, max_jobs=1)

    assert state == "failed"
    log = airflow.task_log(DAG_ID, run_id, "create_jobs")
    assert "2 jobs are to be created, and one attempt may create 1" in log
    assert airflow.xcom(DAG_ID, run_id, "report") == {}
    assert posts_to(service, 9091, 9092) == [0, 0]
    assert in_ledger(airflow, "PM-909") == []


def test_all_mistakes_of_a_list_are_shown_and_nothing_is_sent(
    airflow: LocalAirflow, service: FakeFieldService, due_list: Path
) -> None:
    due_list.write_text(f"{HEAD}PM-9101,9101,{DUE},\nPM-9102,9102,soon,\nPM-9101,,{DUE},\n")

    run_id, state = run(airflow, due_list)

    assert state == "failed"
    log = airflow.task_log(DAG_ID, run_id, "choose_rows")
    assert "row 3: propertyID: is empty" in log
    assert "row 2: due: should be a date such as 2026-01-05, not 'soon'" in log
    assert airflow.task_states(DAG_ID, run_id)["create_jobs"] == "upstream_failed"
    assert posts_to(service, 9101, 9102) == [0, 0]


def test_a_connection_without_a_ledger_is_refused_in_words_that_help(
    airflow: LocalAirflow, service: FakeFieldService, example: None, dags_folder: Path, due_list: Path
) -> None:
    copy(airflow, dags_folder, "planned_maintenance_jobs", "planned_without_ledger")
    write(due_list, 9111)

    run_id = airflow.trigger("planned_without_ledger", {"due_list": str(due_list)})

    assert airflow.wait_for_run("planned_without_ledger", run_id) == "failed"
    log = airflow.task_log("planned_without_ledger", run_id, "create_jobs")
    assert "Set state_conn_id in the extra of connection 'fsm_default'" in log
    assert posts_to(service, 9111) == [0]
