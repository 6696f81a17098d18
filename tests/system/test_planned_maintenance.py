"""Planned maintenance on a real Airflow: each row of a due list once, whichever run sees it."""

import csv
import shutil
from pathlib import Path
from urllib.parse import quote

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


def run(
    airflow: LocalAirflow, due_list: Path, *, run_id: str | None = None, **params: object
) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = airflow.trigger(DAG_ID, {"due_list": str(due_list), **params}, run_id)
    return run_id, airflow.wait_for_run(DAG_ID, run_id)


def posts_to(service: FakeFieldService, *properties: int) -> int:
    return sum(len(service.requests_to("POST", f"/properties/{number}/jobs")) for number in properties)


def rows_for(list_path: Path, run_id: str, suffix: str) -> dict[str, dict[str, str]]:
    lines = file_for(list_path, run_id, suffix).read_text().splitlines()
    return {row["reference"]: row for row in csv.DictReader(lines)}


def file_for(list_path: Path, run_id: str, suffix: str) -> Path:
    """Find the file of a run; its name ends in the run's mark."""
    (found,) = list_path.with_name(f"{list_path.name}.outcomes").glob(f"{quote(run_id, safe='')}~*{suffix}")
    return found


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
    assert rows_for(due_list, scheduled, planned.CLAIMS).keys() == jobs.keys()
    outcomes = rows_for(due_list, scheduled, planned.OUTCOMES)
    assert {name: (row["outcome"], row["jobID"], row["link"]) for name, row in outcomes.items()} == {
        name: ("created", str(job["id"]), job["links"]["self"]) for name, job in jobs.items()
    }
    assert outcomes["PM-2026-0001"]["quotedAmount"] == jobs["PM-2026-0001"]["quotedAmount"] == "120.00"
    assert airflow.xcom(DAG_ID, scheduled, "report")["outcomes"] == {"created": 5}
    assert airflow.xcom(DAG_ID, by_hand, "report")["outcomes"] == {}
    assert len(list((example / "data").glob("*.outcomes/*"))) == 2

    # As if the run had died before its outcomes were written, and is cleared.
    file_for(due_list, scheduled, planned.OUTCOMES).unlink()
    airflow.clear(DAG_ID, scheduled, airflow.task_states(DAG_ID, scheduled))
    assert airflow.wait_for_run(DAG_ID, scheduled) == "success"
    assert rows_for(due_list, scheduled, planned.OUTCOMES) == outcomes
    assert sum(job["customerReference"].startswith("PM-") for job in service.jobs) == 5


def test_a_dry_run_shows_what_it_would_send_and_leaves_nothing(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "DRY-1,9101,2026-01-05,Boiler service\nDRY-2,9102,2026-01-07,\n")

    run_id, state = run(airflow, due_list, dry_run=True, due_on="2026-01-06")

    assert state == "success"
    assert airflow.task_states(DAG_ID, run_id)["create_jobs"] == "skipped"
    log = airflow.task_log(DAG_ID, run_id, "check_jobs")
    assert "Dry run: 1 jobs are valid, 1 of them to be created, none was sent" in log
    assert '9101      new    {"notes": "Boiler service", "customerReference": "DRY-1"}' in log
    assert posts_to(service, 9101, 9102) == 0
    assert list(due_list.parent.iterdir()) == [due_list]


def test_more_than_max_jobs_are_refused_before_anything_is_claimed(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "MAX-1,9201,2026-01-05,\nMAX-2,9202,2026-01-05,\n")

    run_id, state = run(airflow, due_list, max_jobs=1)

    assert state == "failed"
    log = airflow.task_log(DAG_ID, run_id, "check_jobs")
    assert "2 jobs are to be created, one attempt may create 1" in log
    assert posts_to(service, 9201, 9202) == 0
    assert list(due_list.parent.iterdir()) == [due_list]


def test_a_mistake_in_the_list_fails_the_run_before_anything_is_claimed(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "BAD-1,9301,2026-01-05,\nBAD-2,9302,soon,\n")

    run_id, state = run(airflow, due_list)

    assert state == "failed"
    log = airflow.task_log(DAG_ID, run_id, "choose_rows")
    assert "due.csv, line 3, column due: 'soon' is not a date like 2026-01-05" in log
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
                planned.file_for(folder, f"died:{name}", suffix),
                [planned.report_row(name, "1", outcome or "")],
            )
    service.fail("POST", "/properties/9402/jobs", faults.Status(400, {"message": "no such property"}))

    first, first_state = run(airflow, due_list, outcomes=str(folder))
    second, second_state = run(airflow, due_list, outcomes=str(folder))

    assert (first_state, second_state) == ("failed", "success")
    assert airflow.task_states(DAG_ID, first) == {
        **dict.fromkeys(("choose_rows", "check_jobs", "write_outcomes", "report"), "success"),
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
    taken = planned.taken_from(folder, None)
    assert {name: row["outcome"] for name, row in taken.items()} == {
        "REJ-1": "created",
        "REJ-2": "created",
        "REJ-3": "claimed",
        "REJ-4": "uncertain",
    }
    for name, run_id in {"REJ-1": first, "REJ-2": second, "REJ-4": "died:REJ-4"}.items():
        assert taken[name]["remark"].startswith(f"see run {run_id}")


def test_a_run_that_is_deleted_and_made_again_sends_only_what_does_not_exist(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    """Its ledger went with it: what came of each row is known from its files alone."""
    numbers = range(9501, 9505)
    due_list.write_text(HEAD + "".join(f"DEL-{number},{number},2026-01-05,\n" for number in numbers))
    for number, status in {9502: 400, 9503: 500, 9504: 409}.items():
        service.fail("POST", f"/properties/{number}/jobs", faults.Status(status))
    run_id, first_state = run(airflow, due_list)

    airflow.api("DELETE", f"/dags/{DAG_ID}/dagRuns/{run_id}")
    _, second_state = run(airflow, due_list, run_id=run_id)

    assert (first_state, second_state) == ("failed", "success")
    assert [posts_to(service, number) for number in numbers] == [1, 2, 1, 1]
    assert airflow.xcom(DAG_ID, run_id, "report")["outcomes"] == {
        "created": 1,
        "uncertain": 1,
        "rejected": 1,
    }

    # As if the second had died before its outcomes were written, and was deleted as well.
    *_, newest = sorted(
        due_list.parent.glob("*.outcomes/*.outcomes.csv"), key=lambda file: file.stat().st_mtime
    )
    newest.unlink()
    airflow.api("DELETE", f"/dags/{DAG_ID}/dagRuns/{run_id}")
    run(airflow, due_list, run_id=run_id)

    assert [posts_to(service, number) for number in numbers] == [1, 2, 1, 1]
    assert airflow.xcom(DAG_ID, run_id, "report")["outcomes"] == {
        "claimed": 1,
        "uncertain": 1,
        "rejected": 1,
    }


def test_a_token_that_is_refused_when_the_run_is_cleared_frees_nothing_that_was_created(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    """The run seems to have died before its outcomes were written: its ledger alone knows of its jobs."""
    numbers = range(9601, 9613)
    created, missing = numbers[6:], numbers[:6]
    due_list.write_text(HEAD + "".join(f"TOK-{number},{number},2026-01-05,\n" for number in numbers))
    for number in missing:
        service.fail("POST", f"/properties/{number}/jobs", faults.Status(400))
    run_id, _ = run(airflow, due_list)
    file_for(due_list, run_id, planned.OUTCOMES).unlink()
    for number in numbers:
        service.fail("POST", f"/properties/{number}/jobs", faults.Status(401), every=True)

    airflow.clear(DAG_ID, run_id, ["choose_rows", "check_jobs", "create_jobs", "write_outcomes", "report"])
    assert airflow.wait_for_run(DAG_ID, run_id) == "failed"

    outcomes = rows_for(due_list, run_id, planned.OUTCOMES)
    assert {name for name, row in outcomes.items() if row["outcome"] == "created"} == {
        f"TOK-{number}" for number in created
    }
    service.clear_faults()
    _, state = run(airflow, due_list)
    assert state == "success"
    jobs = [job["propertyID"] for job in service.jobs if job["propertyID"] in numbers]
    assert sorted(jobs) == list(numbers)


def test_a_creation_that_is_cleared_alone_holds_its_rows_and_leaves_those_of_others(
    airflow: LocalAirflow, service: FakeFieldService, example: Path, due_list: Path
) -> None:
    due_list.write_text(HEAD + "ALONE-1,9701,2026-01-05,\n")
    service.fail("POST", "/properties/9701/jobs", faults.Status(400), every=True)
    first, second = (run(airflow, due_list)[0] for _ in range(2))
    assert posts_to(service, 9701) == 2
    service.clear_faults()

    states, only_failed = [], {"only_failed": True, "dry_run": False}
    for run_id in (first, second):
        airflow.api("POST", f"/dags/{DAG_ID}/dagRuns/{quote(run_id)}/clear", json=only_failed)
        states.append(airflow.wait_for_run(DAG_ID, run_id))
    third, _ = run(airflow, due_list)

    assert states == ["success", "failed"]
    assert "claimed already: ALONE-1" in airflow.task_log(DAG_ID, second, "create_jobs")
    assert airflow.xcom(DAG_ID, third, "report")["outcomes"] == {"claimed": 1}
    assert [job["propertyID"] for job in service.jobs].count(9701) == 1
