"""The service's Retry-After as a task's retry delay."""

from datetime import datetime

from fsm_provider.testing import FakeFieldService, faults
from tests.system.local_airflow import LocalAirflow


def test_a_retry_comes_when_the_service_asks_and_sends_only_what_is_missing(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    airflow.add_connection("fsm_unrepeated", service.connection(), max_retries=0)
    service.fail("POST", "/properties/42/jobs", faults.Status(429, headers={"Retry-After": "9"}))

    run_id = airflow.trigger("asked_to_wait")

    assert airflow.wait_for_run("asked_to_wait", run_id) == "success"
    assert jobs_for(service, "LATER") == [f"LATER-{property_id}" for property_id in range(41, 45)]
    assert len(service.requests_to("POST", "/properties/41/jobs")) == 1
    attempts = airflow.api("GET", f"/dags/asked_to_wait/dagRuns/{run_id}/taskInstances/create/tries")
    first, second = (one for one in attempts["task_instances"] if one["try_number"])
    waited = datetime.fromisoformat(second["start_date"]) - datetime.fromisoformat(first["end_date"])
    assert waited.total_seconds() >= 9
    outcomes = airflow.xcom("asked_to_wait", run_id, "create")
    assert [outcome["outcome"] for outcome in outcomes] == ["existing", "created", "created", "created"]


def jobs_for(service: FakeFieldService, prefix: str) -> list[str]:
    references = [job["customerReference"] or "" for job in service.jobs]
    return sorted(reference for reference in references if reference.startswith(f"{prefix}-"))
