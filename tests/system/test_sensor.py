"""Marking and clearing a sensor on a real Airflow, in every mode."""

import time

from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.sensors import MODES
from tests.system.local_airflow import LocalAirflow

WAITING = {"poke": "running", "reschedule": "up_for_reschedule", "deferrable": "deferred"}
JOBS = dict(zip(MODES, range(700_001, 700_004), strict=True))
QUIET_SECONDS = 20.0
"""More than the longest interval of a sensor."""


def test_a_cancelled_sensor_stops_polling_and_a_cleared_one_starts_again(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    def polls(mode: str) -> int:
        queries = [dict(request.query) for request in service.requests_to("GET", "/forms")]
        own = sum(query.get("jobID") == str(JOBS[mode]) for query in queries)
        # A deferred sensor polls through a stream without a job filter, and only a watcher by updates.
        shared = sum("createdOnDateTime[gte]" in query and "jobID" not in query for query in queries)
        return own + (shared if mode == "deferrable" else 0)

    def are_quiet() -> bool:
        before = [polls(mode) for mode in MODES]
        time.sleep(QUIET_SECONDS)
        return [polls(mode) for mode in MODES] == before

    dags = {mode: f"sensor_waits_{mode}" for mode in MODES}
    runs = {mode: airflow.trigger(dags[mode], {"job_id": JOBS[mode]}) for mode in MODES}
    for mode, run_id in runs.items():
        waits = {"wait": WAITING[mode]}
        airflow.wait_for_tasks(
            dags[mode], run_id, lambda states, mode=mode, waits=waits: states == waits and polls(mode) > 1
        )
        airflow.set_task_state(dags[mode], run_id, "wait", "failed")
    assert {airflow.wait_for_run(dags[mode], run_id) for mode, run_id in runs.items()} == {"failed"}
    wait_until(are_quiet, "the sensors that were marked as failed stop polling")

    for mode, run_id in runs.items():
        before = polls(mode)
        airflow.clear(dags[mode], run_id, ["wait"])
        service.wait_for(lambda mode=mode, before=before: polls(mode) > before, PATIENCE)
        form = service.add_form(job_id=JOBS[mode])
        assert airflow.wait_for_run(dags[mode], run_id) == "success"
        assert [found["id"] for found in airflow.xcom(dags[mode], run_id, "wait")] == [form["id"]]
