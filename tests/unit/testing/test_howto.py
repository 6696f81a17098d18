"""What ``docs/testing.md`` shows: tests as a DAG author writes them."""

# [START howto_fake]
import pytest

from fsm_provider.api import FsmUncertainWriteError
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.testing import Engineer, FakeFieldService, faults


def test_an_order_becomes_a_job(monkeypatch):
    with FakeFieldService(engineer=Engineer(after=0.1, form_names=("Job Sign-off",))) as service:
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", service.connection_json())

        FsmCreateJobOperator(
            task_id="create_job", property_id=7, job={"customerReference": "PO-4711"}
        ).execute({})

        assert [job["customerReference"] for job in service.jobs] == ["PO-4711"]
        [form] = service.wait_for(lambda: service.forms, timeout=5)
        assert form["formName"] == "Job Sign-off"


# [END howto_fake]


# [START howto_fault]
def test_a_lost_response_is_not_repeated(fake_field_service):
    fake_field_service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))

    with pytest.raises(FsmUncertainWriteError):
        FsmHook().create_job(7, {"customerReference": "PO-4711"})

    assert len(fake_field_service.jobs) == 1


# [END howto_fault]
