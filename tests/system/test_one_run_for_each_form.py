"""The recipe of one run for each form: a pause of either DAG and a backlog lose none.

It has an Airflow of its own, so that it runs on any version from 3.0 on.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fsm_provider.testing import FakeFieldService
from tests.capabilities import ASSETS
from tests.pages import ROOT
from tests.system.airflow_api import wait_until
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled

ASSETS.require()

RECIPE = ROOT / "tests" / "recipes" / "one_run_for_each_form.py"
FIND = "find_certificates"
FILE = "file_certificate"


@pytest.fixture
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService() as running:
        yield running


@pytest.fixture
def airflow(service: FakeFieldService, tmp_path: Path) -> Iterator[LocalAirflow]:
    """An Airflow that has the recipe alone."""
    dags_folder = tmp_path / "dags"
    dags_folder.mkdir()
    recipe = RECIPE.read_text()
    recipe = recipe.replace("poll_interval=60", "poll_interval=1")
    recipe = recipe.replace("/data/certificates", str(tmp_path / "certificates"))
    (dags_folder / "recipe.py").write_text(recipe)
    home = tmp_path / "airflow"
    home.mkdir()
    with LocalAirflow(dags_folder, home, connections_with_ledger(service, home)) as running:
        yield running


def run_id_of(form: dict[str, Any]) -> str:
    # A reference has the time in microseconds, or without them, at the begin of a second.
    updated = datetime.fromisoformat(form["lastUpdatedOnDateTime"]).isoformat()
    return f"form-{form['id']}-{updated.replace('+00:00', 'Z')}"


def add_forms(service: FakeFieldService, count: int) -> set[str]:
    """Complete forms, and give the ids of the runs that they are to have."""
    run_ids = set()
    for _ in range(count):
        form = service.add_form()
        run_ids.add(run_id_of(form))
    return run_ids


def runs_of_forms(airflow: LocalAirflow) -> dict[str, str]:
    """Give the state of each run by its id."""
    return {run["dag_run_id"]: run["state"] for run in airflow.runs(FILE)}


def until_there(airflow: LocalAirflow, run_ids: set[str]) -> None:
    wait_until(lambda: set(runs_of_forms(airflow)) >= run_ids, f"the runs {run_ids}")


def until_succeeded(airflow: LocalAirflow, run_ids: set[str]) -> None:
    def have_succeeded() -> bool:
        states = runs_of_forms(airflow)
        return all(states.get(run_id) == "success" for run_id in run_ids)

    wait_until(have_succeeded, f"the runs {run_ids} have succeeded")


def test_each_version_of_a_form_has_one_run_whatever_is_paused(
    airflow: LocalAirflow, service: FakeFieldService, tmp_path: Path
) -> None:
    airflow.wait_for_dag(FILE)
    airflow.pause(FILE, False)
    airflow.pause(FIND, False)
    until_polled(service)
    expected = add_forms(service, 2)
    until_succeeded(airflow, expected)

    airflow.pause(FILE, True)
    backlog = add_forms(service, 4)
    until_there(airflow, backlog)
    assert {runs_of_forms(airflow)[run_id] for run_id in backlog} == {"queued"}
    airflow.pause(FILE, False)
    until_succeeded(airflow, backlog)

    airflow.pause(FIND, True)
    unseen = add_forms(service, 2)
    airflow.pause(FIND, False)
    until_polled(service)
    unseen |= add_forms(service, 1)
    until_succeeded(airflow, unseen)

    form = service.forms[0]
    newer = {run_id_of(service.update_form(form["id"]))}
    until_succeeded(airflow, newer)

    assert set(runs_of_forms(airflow)) == expected | backlog | unseen | newer
    pdfs = list((tmp_path / "certificates").rglob("*.pdf"))
    assert len(pdfs) == 10, "one of each version"
