"""Arguments that an operator does not have."""

import pickle
from functools import partial

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor


def test_an_argument_that_does_not_exist_is_named_in_another_process_too():
    with pytest.raises(FsmInputError) as refused:
        FsmFormSensor(task_id="task", form_name=1)

    assert str(refused.value) == "form_name: is not an argument of FsmFormSensor: did you mean form_names?"
    assert refused.value.__suppress_context__
    back = pickle.loads(pickle.dumps(refused.value))
    assert (type(back), str(back)) == (type(refused.value), str(refused.value))


@pytest.mark.parametrize(
    ("operator", "other", "name"),
    [
        (FsmFormSensor, "created_since", "since"),
        (FsmFormSensor, "http_conn_id", "fsm_conn_id"),
        (partial(FsmRequestOperator, path="/x"), "data", "json"),
    ],
)
def test_an_argument_of_another_operator_leads_to_its_name_here(operator, other, name):
    with pytest.raises(FsmInputError, match=f"^{other}: is not an argument of .*: did you mean {name}\\?$"):
        operator(task_id="task", **{other: "x"})


def test_each_argument_that_does_not_exist_is_named():
    with pytest.raises(FsmInputError) as refused:
        FsmCreateJobOperator(
            task_id="task", property_id=7, job={}, notes="canary", keys="canary", customerReference=5, x=1
        )

    assert str(refused.value) == (
        "customerReference: is not an argument of FsmCreateJobOperator: it belongs in job; "
        "keys: is not an argument of FsmCreateJobOperator: did you mean key?; "
        "notes: is not an argument of FsmCreateJobOperator: it belongs in job; "
        "x: is not an argument of FsmCreateJobOperator"
    )


@pytest.mark.parametrize("wrong", [{"retries": "many"}, {"trigger_rule": "never"}])
def test_an_argument_of_airflows_that_is_wrong_is_airflows_error(wrong):
    with pytest.raises(Exception) as refused:  # noqa: PT011 - another one in each version
        FsmFormSensor(task_id="task", **wrong)

    assert "is not an argument" not in str(refused.value)
