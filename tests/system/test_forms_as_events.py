"""Forms as events on a real Airflow: the watcher of an asset loses no form around a kill or a pause."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import wait_until
from tests.system.conftest import HISTORY
from tests.system.form_events import DAG_ID, add, emitted, times_emitted, until_emitted
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled


def test_new_forms_start_a_run_and_history_does_not(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    history = {form["id"] for form in watched.forms[:HISTORY]}
    added = add(watched, 3)

    until_emitted(airflow, added)

    assert history.isdisjoint(form for run in emitted(airflow) for form in run)


def test_a_killed_triggerer_loses_no_form(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    before = add(watched)
    until_polled(watched, 1)
    airflow.kill("triggerer")
    meanwhile = add(watched)
    airflow.restart("triggerer")

    until_emitted(airflow, [*before, *meanwhile])

    times = times_emitted(airflow, [*before, *meanwhile])
    print(f"forms by how often they were emitted: {Counter(times.values())}")
    assert times[before[0]] <= 2
    assert times[meanwhile[0]] == 1


def test_a_paused_dag_gets_the_forms_of_its_pause(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    airflow.pause(DAG_ID, True)
    try:
        early = add(watched)
        until_silent(watched)
        late = add(watched, 3)
    finally:
        airflow.pause(DAG_ID, False)

    until_emitted(airflow, [*early, *late])

    assert set(times_emitted(airflow, [*early, *late]).values()) == {1}


def until_silent(service: FakeFieldService) -> None:
    """Wait until the watcher is gone, because every DAG of its asset is paused."""
    wait_until(lambda: datetime.now(UTC) - service.requests[-1].at > timedelta(seconds=5), "no request")
