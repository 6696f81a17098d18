"""Tasks, a sensor, an asset and a ledger of the release before go on with this one.

That release is a commit, with the tag 0.1.0rc1; a clone without the history has none.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import ASSETS
from tests.pages import ROOT
from tests.system.airflow_api import wait_until
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled

BEFORE = "1b1c0ba140dd488d43a6ce94dc73e1bfc62d6ad4"
DAGS = Path(__file__).parent / "upgrade"


@pytest.fixture
def release_before(tmp_path: Path) -> Path:
    """A folder with the package as it was."""
    folder = tmp_path / "before"
    folder.mkdir()
    command = ["git", "-C", str(ROOT), "archive", "--format", "tar", BEFORE, "fsm_provider"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone has no commit {BEFORE}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


@pytest.fixture
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService() as running:
        yield running


def ids_of_watched_forms(airflow: LocalAirflow) -> list[int]:
    """Give the forms that runs have got, in order."""
    ids: list[int] = []
    for run_id in airflow.succeeded_runs("watching"):
        ids += airflow.xcom("watching", run_id, "form_ids")
    return ids


@ASSETS.needed
def test_what_is_under_way_goes_on_with_the_new_version(
    release_before: Path, service: FakeFieldService, tmp_path: Path
) -> None:
    home = tmp_path / "airflow"
    home.mkdir()
    airflow = LocalAirflow(DAGS, home, connections_with_ledger(service, home, max_retries=0))
    service.fail("POST", "/properties/2/jobs", faults.Status(429), every=True)
    service.fail("POST", "/properties/3/jobs", faults.Reset(after_handling=True))
    airflow.env["PYTHONPATH"] = str(release_before)
    with airflow:
        until_polled(service)
        first_form = service.add_form(job_id=1, property_id=1)["id"]
        wait_until(lambda: ids_of_watched_forms(airflow), "a run has got the first form")
        run_ids = {dag_id: airflow.trigger(dag_id) for dag_id in ("in_retry", "waiting", "by_key")}
        for dag_id, task_id, state in (
            ("in_retry", "create_jobs", "up_for_retry"),
            ("waiting", "wait", "deferred"),
        ):
            airflow.wait_for_tasks(
                dag_id,
                run_ids[dag_id],
                lambda states, task_id=task_id, state=state: states.get(task_id) == state,
            )
        assert airflow.wait_for_run("by_key", run_ids["by_key"]) == "failed"
        uncertain = airflow.task_log("by_key", run_ids["by_key"], "create_job")
        created = len(service.requests_to("POST", "/properties/1/jobs"))

    del airflow.env["PYTHONPATH"]
    service.clear_faults()
    with airflow:
        second_form = service.add_form(job_id=77, property_id=1)["id"]

        assert airflow.wait_for_run("in_retry", run_ids["in_retry"]) == "success"
        assert airflow.wait_for_run("waiting", run_ids["waiting"]) == "success"
        found = airflow.xcom("waiting", run_ids["waiting"], "wait")
        wait_until(
            lambda: second_form in ids_of_watched_forms(airflow), "a run has got the new form"
        )
        watched = ids_of_watched_forms(airflow)
        made = {job["customerReference"]: job["id"] for job in service.jobs}
        settle(airflow, uncertain, made["UP-3"])
        airflow.clear("by_key", run_ids["by_key"], ["create_job"])
        wait_until(
            lambda: airflow.run_state("by_key", run_ids["by_key"]) == "success",
            "the task that was settled returns its job",
        )
        returned = airflow.xcom("by_key", run_ids["by_key"], "create_job")

    assert [form["id"] for form in found] == [second_form]
    assert watched == [first_form, second_form]
    assert created == 1
    assert returned["id"] == made["UP-3"]
    references = sorted(job["customerReference"] for job in service.jobs)
    assert references == ["UP-1", "UP-2", "UP-3"]


def settle(airflow: LocalAirflow, log: str, job_id: int) -> None:
    """Type the command that a message of the release before shows."""
    (command,) = set(re.findall(r"fsm_provider (ledger settle .*? UP-3)", log))
    arguments = shlex.split(command.replace("--job-id N", f"--job-id {job_id}"))
    subprocess.run(
        [sys.executable, "-m", "fsm_provider", *arguments],
        env=airflow.env,
        cwd=airflow.home,
        check=True,
        timeout=120,
    )
