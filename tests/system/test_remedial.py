"""A warning notice on a real Airflow: one follow-up job, however many runs see the form."""

from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.system.examples import WITH_LEDGER, copy
from tests.system.local_airflow import LocalAirflow

DAG_ID = "remedial_copy"


@pytest.fixture(scope="module")
def example(airflow: LocalAirflow, dags_folder: Path) -> None:
    copy(airflow, dags_folder, "remedial_from_warning_notice", DAG_ID, **WITH_LEDGER)


def run(airflow: LocalAirflow, form_name: str) -> tuple[str, str]:
    """Run it over the notices of one name; give the run's id and its final state."""
    run_id = airflow.trigger(DAG_ID, {"form_name": form_name})
    return run_id, airflow.wait_for_run(DAG_ID, run_id)


def add_forms(service: FakeFieldService, property_id: int, *names: str) -> list[dict]:
    return [service.add_form(form_name=name, property_id=property_id, job_id=77) for name in names]


def test_two_runs_over_the_same_forms_make_one_job_of_each_warning_notice(
    airflow: LocalAirflow, service: FakeFieldService, example: None
) -> None:
    forms = add_forms(service, 9500, "Warning Notice", "Gas Safety Record", "Warning Notice")
    references = {f"REM-FORM-{forms[index]['id']}" for index in (0, 2)}

    first, first_state = run(airflow, "Warning Notice")
    airflow.api("DELETE", f"/dags/{DAG_ID}/dagRuns/{first}")
    second, second_state = run(airflow, "Warning Notice")

    assert (first_state, second_state) == ("success", "success")
    outcomes = airflow.xcom(DAG_ID, second, "create_jobs")
    assert {one["key"]: one["outcome"] for one in outcomes} == dict.fromkeys(references, "existing")
    jobs = [job for job in service.jobs if job["propertyID"] == 9500]
    assert {job["customerReference"] for job in jobs} == references
    assert len(jobs) == 2
    assert f"Warning Notice {forms[0]['id']}" in jobs[0]["notes"] + jobs[1]["notes"]
    assert "at job 77" in jobs[0]["notes"]
    assert jobs[0]["priority"] == "Important"


def test_a_notice_that_is_rejected_stays_due_and_the_others_have_their_jobs(
    airflow: LocalAirflow, service: FakeFieldService, example: None
) -> None:
    for number in (9511, 9512):
        add_forms(service, number, "Refused Notice")
    service.fail("POST", "/properties/9511/jobs", faults.Status(400))

    first, first_state = run(airflow, "Refused Notice")
    _, second_state = run(airflow, "Refused Notice")

    assert (first_state, second_state) == ("failed", "success")
    assert airflow.task_states(DAG_ID, first)["commit"] == "upstream_failed"
    assert [len(service.requests_to("POST", f"/properties/{one}/jobs")) for one in (9511, 9512)] == [2, 1]
    assert sorted(job["propertyID"] for job in service.jobs if job["propertyID"] in (9511, 9512)) == [
        9511,
        9512,
    ]


def test_an_account_without_notices_is_no_failure(airflow: LocalAirflow, example: None) -> None:
    _, state = run(airflow, "Notice that nobody has")

    assert state == "success"
