"""The recipe of jobs that an agent proposes: a person approves on a real Airflow.

It has an Airflow of its own, so that it runs on any version from 3.1 on.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService
from fsm_provider.triggers.forms import MIN_DEFERRAL
from tests.capabilities import APPROVALS
from tests.pages import ROOT
from tests.system.airflow_api import LocalAirflowError, wait_until
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow

APPROVALS.require()

RECIPE = ROOT / "tests" / "recipes" / "jobs_that_are_approved.py"
DAG = "jobs_that_are_approved"
FORMS = {7: "Warning Notice", 8: "Warning Notice", 9: "Gas Safety Record"}


@pytest.fixture
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService() as running:
        yield running


@pytest.fixture
def airflow(service: FakeFieldService, tmp_path: Path) -> Iterator[LocalAirflow]:
    """An Airflow that has the recipe alone."""
    dags_folder = tmp_path / "dags"
    dags_folder.mkdir()
    (dags_folder / "recipe.py").write_text(RECIPE.read_text())
    home = tmp_path / "airflow"
    home.mkdir()
    with LocalAirflow(dags_folder, home, connections_with_ledger(service, home)) as running:
        yield running


def answer(airflow: LocalAirflow, run_id: str, option: str) -> str:
    """Answer as a person does, once the run asks; return what the person was shown."""
    path = f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"

    def question() -> str:
        try:
            return str(airflow.api("GET", path)["body"])
        except LocalAirflowError as error:
            if " 404 " not in str(error):
                raise
            return ""

    shown = wait_until(question, "the run asks for an approval")
    # Airflow loses an answer that comes before the task waits. It fails the attempt if the answer
    # comes before the scheduler has noticed the end of the process that asked.
    waiting = ("deferred", "awaiting_input")  # since Airflow 3.3
    wait_until(lambda: airflow.task_states(DAG, run_id)["approve"] in waiting, "the approval waits")
    time.sleep(MIN_DEFERRAL)
    response = {"chosen_options": [option], "params_input": {}}
    airflow.api("PATCH", path, json=response)
    return shown


def ordered(service: FakeFieldService) -> list[tuple[int, str]]:
    """Give the property and the reference of each job, by property."""
    return sorted((job["propertyID"], job["customerReference"]) for job in service.jobs)


def test_only_approved_jobs_are_created_and_each_once(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    notices = []
    for property_id, name in FORMS.items():
        form = service.add_form(property_id=property_id, form_name=name)
        if name == "Warning Notice":
            notices.append((property_id, f"notice {form['id']}"))

    refused = airflow.trigger(DAG)
    answer(airflow, refused, "Reject")
    assert airflow.wait_for_run(DAG, refused) == "success"
    assert airflow.task_states(DAG, refused)["create"] == "skipped"
    assert service.jobs == []

    approved = airflow.trigger(DAG)
    shown = answer(airflow, approved, "Approve")
    assert airflow.wait_for_run(DAG, approved) == "success"
    assert ordered(service) == notices
    for _, reference in notices:
        assert reference in shown

    again = airflow.trigger(DAG)
    answer(airflow, again, "Approve")
    assert airflow.wait_for_run(DAG, again) == "success"
    outcomes = airflow.xcom(DAG, again, "create")
    assert [outcome["outcome"] for outcome in outcomes] == ["existing", "existing"]
    assert ordered(service) == notices
