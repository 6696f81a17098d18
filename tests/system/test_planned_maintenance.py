"""Planned maintenance on a real Airflow: each row of a due list once, whichever run sees it."""

import csv
import shutil
from pathlib import Path

import pytest

from example_dags import planned_maintenance_jobs as planned
from fsm_provider.testing import FakeFieldService, faults
from tests.system.conftest import DAGS
from tests.system.examples import UNPAUSED, copy
from tests.system.local_airflow import LocalAirflow

DAG_ID = "planned_maintenance_unpaused"
HEAD = "reference,propertyID,due,notes\n"


@pytest.fixture(scope="module")
def example(airflow: LocalAirflow, dags_folder: Path) -> Path:
    """The example and its list, copied and not paused: at once the scheduler starts the run of the day."""
    folder = dags_folder / "planned_maintenance"
    shutil.copytree(DAGS["examples"] / "data", folder / "data")
    copy(airflow, folder, "planned_maintenance_jobs", DAG_ID, by_hand=False, **UNPAUSED)
    return folder


@pytest.fixture
def due_list(tmp_path: Path) -> Path:
    return tmp_path / "due.csv"


def run(airflow: LocalAirflow, due_list: Path, **params: object) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = airflow.trigger(DAG_ID, {"due_list": str(due_list), **params})
    return run_id, airflow.wait_for_run(DAG_ID, run_id)


def posts_to(service: FakeFieldService, *properties: int) -> int:
    return sum(len(service.requests_to("POST", f"/properties/{number}/jobs")) for number in properties)


def rows_of(list_path: Path, run_id: str, suffix: str) -> dict[str, dict[str, str]]:
    folder = list_path.with_name(f"{list_path.name}.outcomes")
    with Path(str(planned.file_of(folder, run_id, suffix))).open(newline="") as file:
        return {row["reference"]: row for row in csv.DictReader(file)}


def test_the_run_of_the_day_creates_what_is_due_and_neither_another_nor_a_clear_does_it_again(
    airflow: LocalAirflow, service: FakeFieldService, example: Path
) -> None:
    scheduled, by_hand = airflow.first_run(DAG_ID), airflow.trigger(DAG_ID)
    for run_id in (scheduled, by_hand):
        assert airflow.wait_for_run(DAG_ID, run_id) == "success"

    created = [job for job in service.jobs if job["customerReference"].startswith("PM-")]
    jobs = {job["customerReference"]: job for job in created}
    assert sorted(jobs) == [f"PM-2026-000{number}" for number in range(1, 6)]
    assert len(created) == 5
    due_list = example / "data" / "planned_maintenance.csv"
    assert rows_of(due_list, scheduled, planned.CLAIMS).keys() == jobs.keys()
    outcomes = rows_of(due_list, scheduled, planned.OUTCOMES)
    assert {name: (row["outcome"], row["jobID"], row["link"]) for name, row in outcomes.items()} == {
        name: ("created", str(job["id"]), job["links"]["self"]) for name, job in jobs.items()
    }
    assert outcomes["PM-2026-0001"]["quotedAmount"] == jobs["PM-2026-0001"]["quotedAmount"] == "120.00"
    assert airflow.xcom(DAG_ID, scheduled, "report")["outcomes"] == {"created": 5}
    assert airflow.xcom(DAG_ID, by_hand, "report")["outcomes"] == {}
    files = sorted((example / "data").glob("*.outcomes/*"))
    assert len(files) == 2

    # As if the run had died before its outcomes were written, and is cleared.
    files[1].unlink()
    airflow.clear(DAG_ID, scheduled, airflow.task_states(DAG_ID, scheduled))
    assert airflow.wait_for_run(DAG_ID, scheduled) == "success"
    assert rows_of(due_list, scheduled, planned.OUTCOMES) == outcomes
    assert sum(job["customerReference"].startswith("PM-") for job in service.jobs) == 5


def test_a_dry_run_shows_what_it_would_send_and_leaves_nothing(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "DRY-1,9101,2026-01-05,Boiler service\nDRY-2,9102,2026-01-07,\n")

    run_id, state = run(airflow, due_list, dry_run=True, due_on="2026-01-06")

    assert state == "success"
    assert airflow.task_states(DAG_ID, run_id)["create_jobs"] == "skipped"
    log = airflow.task_log(DAG_ID, run_id, "check_jobs")
    assert "Dry run: 1 jobs are valid, none was sent" in log
    assert '9101      {"notes": "Boiler service", "customerReference": "DRY-1"}' in log
    assert posts_to(service, 9101, 9102) == 0
    assert list(due_list.parent.iterdir()) == [due_list]


def test_more_than_max_jobs_are_refused_before_anything_is_claimed(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "MAX-1,9201,2026-01-05,\nMAX-2,9202,2026-01-05,\n")

    run_id, state = run(airflow, due_list, max_jobs=1)

    assert state == "failed"
    assert "2 jobs are given, and one run may create 1" in airflow.task_log(DAG_ID, run_id, "check_jobs")
    assert posts_to(service, 9201, 9202) == 0
    assert list(due_list.parent.iterdir()) == [due_list]


def test_a_mistake_in_the_list_fails_the_run_before_anything_is_claimed(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "BAD-1,9301,2026-01-05,\nBAD-2,9302,soon,\n")

    run_id, state = run(airflow, due_list)

    assert state == "failed"
    log = airflow.task_log(DAG_ID, run_id, "choose_rows")
    assert "due.csv, line 3, column due: 'soon' is no date like 2026-01-05" in log
    assert posts_to(service, 9301, 9302) == 0
    assert list(due_list.parent.iterdir()) == [due_list]


def test_a_rejected_row_fails_the_run_and_is_alone_in_the_next(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path, tmp_path: Path
) -> None:
    """Two rows were claimed by runs that died or do not know: these are shown and not sent."""
    due_list.write_text(
        HEAD + "".join(f"REJ-{number},{9400 + number},2026-01-05,\n" for number in range(1, 5))
    )
    folder = planned.ObjectStoragePath(str(tmp_path / "elsewhere"))
    for name, outcome in {"REJ-3": None, "REJ-4": "uncertain"}.items():
        for suffix in (planned.CLAIMS, planned.OUTCOMES) if outcome else (planned.CLAIMS,):
            planned.write_rows(
                planned.file_of(folder, f"died:{name}", suffix),
                [planned.report_row(name, "1", outcome or "")],
            )
    service.fail("POST", "/properties/9402/jobs", faults.Status(400, {"message": "no such property"}))

    first, first_state = run(airflow, due_list, outcomes=str(folder))
    second, second_state = run(airflow, due_list, outcomes=str(folder))

    assert (first_state, second_state) == ("failed", "success")
    assert airflow.task_states(DAG_ID, first) == {
        **dict.fromkeys(("choose_rows", "check_jobs", "claim_rows", "write_outcomes", "report"), "success"),
        "create_jobs": "failed",
    }
    shown = {row["reference"]: row for row in airflow.xcom(DAG_ID, first, "report")["rows"]}
    assert {name: row["outcome"] for name, row in shown.items()} == {
        "REJ-1": "created",
        "REJ-2": "rejected",
        "REJ-3": "claimed",
        "REJ-4": "uncertain",
    }
    assert "no such property" in shown["REJ-2"]["remark"]
    assert shown["REJ-4"]["remark"] == "see run died:REJ-4"
    assert "see run died:REJ-3" in airflow.task_log(DAG_ID, first, "report")
    assert [posts_to(service, 9400 + number) for number in range(1, 5)] == [1, 2, 0, 0]
    assert airflow.xcom(DAG_ID, second, "report")["outcomes"] == {"created": 1, "claimed": 1, "uncertain": 1}
    assert planned.taken_by_others(folder, "") == {
        name: {"outcome": outcome, "remark": f"see run {run_id}"}
        for name, outcome, run_id in [
            ("REJ-1", "created", first),
            ("REJ-2", "created", second),
            ("REJ-3", "claimed", "died:REJ-3"),
            ("REJ-4", "uncertain", "died:REJ-4"),
        ]
    }
