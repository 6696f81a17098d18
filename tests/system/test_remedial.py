"""A warning notice on a real Airflow: one follow-up job, however many runs see the form."""

from collections.abc import Iterator

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.local_airflow import LocalAirflow

LISTING, JOB = "remedial_from_warning_notice", "remedial_job"


@pytest.fixture
def unpaused(airflow: LocalAirflow) -> Iterator[None]:
    """Unpaused, the DAG has its run of the hour at once."""
    airflow.pause(LISTING, False)
    yield
    airflow.pause(LISTING, True)


@pytest.fixture
def forms(service: FakeFieldService) -> list[dict]:
    names = ("Warning Notice", "Gas Safety Record", "Warning Notice")
    return [service.add_form(form_name=name, property_id=9500, job_id=77) for name in names]


def test_two_runs_over_the_same_forms_make_one_job_of_each_warning_notice(
    airflow: LocalAirflow, service: FakeFieldService, forms: list[dict], unpaused: None
) -> None:
    references = {f"REM-FORM-{forms[index]['id']}" for index in (0, 2)}

    runs = [airflow.trigger(LISTING) for _ in range(2)]

    assert [airflow.wait_for_run(LISTING, run_id) for run_id in runs] == ["success"] * 2
    assert airflow.task_states(LISTING, runs[1]) == {
        "begin": "success",
        "list_forms": "success",
        "choose_warning_notices": "success",
        "start_remedial_job[0]": "skipped",
        "start_remedial_job[1]": "skipped",
        "commit": "success",
    }
    for reference in references:
        assert airflow.wait_for_run(JOB, reference) == "success"
    jobs = [job for job in service.jobs if job["propertyID"] == 9500]
    assert {job["customerReference"] for job in jobs} == references
    assert len(jobs) == 2
    assert f"Warning Notice {forms[0]['id']}" in jobs[0]["notes"] + jobs[1]["notes"]
    assert "at job 77" in jobs[0]["notes"]
