"""Planned maintenance on a real Airflow: each row of a due list once, whichever run sees it."""

from pathlib import Path
from threading import Event

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.system.airflow_api import wait_until
from tests.system.examples import WITH_LEDGER, copy
from tests.system.local_airflow import LocalAirflow

DAG_ID = "planned_maintenance_copy"


@pytest.fixture(scope="module")
def example(airflow: LocalAirflow, dags_folder: Path) -> None:
    copy(airflow, dags_folder, "planned_maintenance_jobs", DAG_ID, **WITH_LEDGER)


def trigger(airflow: LocalAirflow, due_list: Path, *properties: int) -> str:
    """Run it by hand over a list with a row for each property, whose reference is named like it."""
    rows = [f"PM-{number},{number},2026-01-05" for number in properties]
    due_list.write_text("\n".join(["reference,propertyID,due", *rows]))
    return airflow.trigger(DAG_ID, {"due_list": str(due_list)})


def posts_to(service: FakeFieldService, *properties: int) -> list[int]:
    return [len(service.requests_to("POST", f"/properties/{number}/jobs")) for number in properties]


def test_two_runs_at_the_same_moment_create_nothing_twice(
    airflow: LocalAirflow, service: FakeFieldService, example: None, tmp_path: Path
) -> None:
    numbers, answered = range(9021, 9029), Event()
    service.fail("POST", "/properties/902*/jobs", faults.Before(answered.wait), every=True)

    def one_waits_for_the_other() -> bool:
        logs = [path.read_text() for path in (airflow.home / "logs" / f"dag_id={DAG_ID}").rglob("*.log")]
        return any("is sending it: waiting until" in log for log in logs)

    runs = [trigger(airflow, tmp_path / "due.csv", *numbers) for _ in range(2)]
    try:
        wait_until(one_waits_for_the_other, "one run waits for what the other is sending")
    finally:
        answered.set()

    assert [airflow.wait_for_run(DAG_ID, run_id) for run_id in runs] == ["success"] * 2
    assert posts_to(service, *numbers) == [1] * 8
    outcomes = [airflow.xcom(DAG_ID, run_id, "create_jobs") for run_id in runs]
    for row in zip(*outcomes, strict=True):
        assert sorted(one["outcome"] for one in row) == ["created", "existing"]


def test_an_uncertain_row_fails_each_run_and_is_not_sent_again(
    airflow: LocalAirflow, service: FakeFieldService, example: None, tmp_path: Path
) -> None:
    numbers = (9051, 9052, 9053)
    service.fail("POST", "/properties/9052/jobs", faults.Reset(after_handling=True))

    for other_rows in ("created", "existing"):
        run_id = trigger(airflow, tmp_path / "due.csv", *numbers)

        assert airflow.wait_for_run(DAG_ID, run_id) == "failed"
        states = {"choose_rows": "success", "create_jobs": "failed", "report": "success"}
        assert airflow.task_states(DAG_ID, run_id) == states
        assert airflow.xcom(DAG_ID, run_id, "report") == {other_rows: 2, "uncertain": 1}
        log = " ".join(airflow.task_log(DAG_ID, run_id, "report").split())
        assert "PM-9052 9052 uncertain POST /properties/9052/jobs may or may not have taken effect" in log
    assert posts_to(service, *numbers) == [1, 1, 1]
