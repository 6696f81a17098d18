"""The provider on this version's own processes: a round trip, and each capability measured."""

import time
from collections.abc import Callable

import pytest
import requests
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from fsm_provider.assets.forms import completed_forms
from fsm_provider.provider_info import get_provider_info
from fsm_provider.testing import FakeFieldService, RecordedRequest
from fsm_provider.triggers.forms import MIN_DEFERRAL
from tests.capabilities import AIRFLOW, ASSETS, IS_AIRFLOW_3, MENU, PAGE
from tests.system.jobs import jobs_with_reference
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled
from tests.versions.dags.runs import WAITING_JOBS

Measured = Callable[..., None]


def run(airflow: LocalAirflow, dag_id: str) -> str:
    run_id = airflow.trigger(dag_id)
    assert airflow.wait_for_run(dag_id, run_id) == "success"
    return run_id


def test_a_job_is_created_and_its_forms_are_waited_for(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    run_id = run(airflow, "created_and_awaited")

    assert len(jobs_with_reference(service, "BOOT")) == 1
    assert airflow.task_states("created_and_awaited", run_id) == {
        "create": "success",
        "poke": "success",
        "deferred": "success",
    }


def test_ledger(airflow: LocalAirflow, service: FakeFieldService, measured: Measured) -> None:
    run_id = run(airflow, "cleared")

    airflow.clear("cleared", run_id, ["create"])
    assert airflow.wait_for_run("cleared", run_id) == "success"

    is_created_once = len(jobs_with_reference(service, "LEDGER")) == 1
    measured("ledger", is_created_once, expected=True, missing="no")


def test_shared_poll(airflow: LocalAirflow, service: FakeFieldService, measured: Measured) -> None:
    """Also after the triggerer was killed, and for forms that come meanwhile."""

    def are_deferred(states: dict[str, str | None]) -> bool:
        return set(states.values()) == {"deferred"}

    def are_two_deferred(states: dict[str, str | None]) -> bool:
        return list(states.values()).count("deferred") == 2

    run_id = airflow.trigger("waiting")
    airflow.wait_for_tasks("waiting", run_id, are_deferred)
    polls = polls_in(service, MIN_DEFERRAL)
    airflow.kill("triggerer")
    for job_id in WAITING_JOBS[:-2]:
        service.add_form(job_id=job_id)
    airflow.restart("triggerer")
    airflow.wait_for_tasks("waiting", run_id, are_two_deferred)
    polls += polls_in(service, MIN_DEFERRAL)
    for job_id in WAITING_JOBS[-2:]:
        service.add_form(job_id=job_id)

    assert airflow.wait_for_run("waiting", run_id) == "success"
    assert polls
    # What is asked for all asks for no job.
    of_one_job = [poll for poll in polls if "jobID" in dict(poll.query)]
    measured("shared poll", not of_one_job, expected=True, missing="no")


def polls_in(service: FakeFieldService, seconds: float) -> list[RecordedRequest]:
    """What is sent in so many seconds, once the triggerer has started all that waits."""
    time.sleep(MIN_DEFERRAL)
    before = len(service.requests_to("GET", "/forms"))
    time.sleep(seconds)
    return service.requests_to("GET", "/forms")[before:]


def test_watcher(
    request: pytest.FixtureRequest, service: FakeFieldService, measured: Measured
) -> None:
    missing = (
        "no: `completed_forms` says so; schedule by time, and list as `forms_since_watermark` does"
    )
    try:
        completed_forms("probed")
    except AirflowOptionalProviderFeatureException:
        return measured("watcher", False, expected=ASSETS.is_there, missing=missing)

    airflow: LocalAirflow = request.getfixturevalue("airflow")
    airflow.wait_for_dag("watched")
    until_polled(service, 4)
    form = service.add_form(form_name="Watched Record")
    run_id = airflow.first_run("watched")
    assert airflow.wait_for_run("watched", run_id) == "success"
    references = airflow.xcom("watched", run_id, "read")
    emitted = [reference["id"] for reference in references]
    return measured("watcher", emitted == [form["id"]], expected=ASSETS.is_there, missing=missing)


def test_receiver(airflow: LocalAirflow, service: FakeFieldService, measured: Measured) -> None:
    """Each version can register a webhook; that its deliveries are received is measured."""
    url = f"{airflow.base_url}/fsm/webhooks/fsm_default/jobs"
    response = requests.post(f"{url}/nobody", json={}, timeout=30)
    if response.status_code == 404 and not IS_AIRFLOW_3:
        run(airflow, "registered_elsewhere")
        missing = "no: Airflow 2 serves no FastAPI application; poll instead"
        return measured("receiver", False, expected=ASSETS.is_there, missing=missing)

    endpoints = {"fsm_default/jobs": {"signature": "standard-webhooks"}}
    configuration = {"base_url": airflow.base_url, "endpoints": endpoints}
    airflow.set_variable("fsm_webhooks", configuration)
    airflow.wait_for_dag("notified_of_jobs")
    run(airflow, "registered_with_the_receiver")
    response = requests.post(f"{url}/nobody", json={}, timeout=30)
    assert response.status_code == 404
    service.add_job(7)
    run_id = airflow.first_run("notified_of_jobs")
    state = airflow.wait_for_run("notified_of_jobs", run_id)
    return measured("receiver", state == "success", expected=ASSETS.is_there, missing="no")


def test_page(airflow: LocalAirflow) -> None:
    """What is uncertain can be looked at, where Airflow serves pages; since 3.1 by its menu."""
    if PAGE.is_there:
        page = airflow.ui("/fsm-page/").text
        assert "Nothing is uncertain" in page
        assert "cannot be read" not in page
    if MENU.is_there:
        names: list[str] = []
        for plugin in airflow.api("GET", "/plugins")["plugins"]:
            names += [view["name"] for view in plugin["external_views"]]
        assert "Field service" in names


def test_form(airflow: LocalAirflow, measured: Measured) -> None:
    (connection_type,) = get_provider_info()["connection-types"]
    declared = set(connection_type["conn-fields"])
    if IS_AIRFLOW_3:
        hooks = airflow.ui("/ui/connections/hook_meta").json()
        (fsm,) = [hook for hook in hooks if hook["connection_type"] == "fsm"]
        offered = set(fsm["extra_fields"] or {})
    else:
        page = airflow.ui("/connection/add").text
        offered = {field for field in declared if f'name="extra__fsm__{field}"' in page}

    measured(
        "form",
        offered == declared,
        expected=AIRFLOW.release[:2] != (3, 0),
        missing="no: there are no fields without the FAB provider; write the extra as JSON",
    )
