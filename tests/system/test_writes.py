"""A job creation whose outcome is unknown: one POST, no retry, and a log that says what is uncertain."""

from fsm_provider.testing import FakeFieldService, faults
from tests.system.dags.writes import PROPERTIES
from tests.system.local_airflow import LocalAirflow

FAULTS = {
    "read_timeout": faults.Stall(),
    "reset_after_sending": faults.Reset(after_handling=True),
    "server_error": faults.Status(503),
    "unreadable": faults.Body(b"{truncated"),
}


def test_an_uncertain_write_is_sent_once_and_reported(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    airflow.add_connection("fsm_short_timeout", service.connection(), timeout=2)
    for task_id, fault in FAULTS.items():
        service.fail("POST", f"/properties/{PROPERTIES[task_id]}/jobs", fault)

    run_id = airflow.trigger("uncertain_writes")

    assert airflow.wait_for_run("uncertain_writes", run_id) == "failed"
    assert airflow.task_states("uncertain_writes", run_id) == dict.fromkeys(FAULTS, "failed")
    for task_id, property_id in PROPERTIES.items():
        assert len(service.requests_to("POST", f"/properties/{property_id}/jobs")) == 1
        log = airflow.task_log("uncertain_writes", run_id, task_id, try_number=1)
        assert f"POST /properties/{property_id}/jobs may or may not have taken effect" in log
        assert f"propertyID '{property_id}'" in log
        assert f"customerReference 'PO-{task_id}'" in log
