"""Operators, sensors and transfers list their parameters, for editors, type checkers and the
reference.
"""

import inspect
import re
from importlib import import_module

import pytest
from airflow.providers.common.compat.sdk import DAG

from fsm_provider.provider_info import get_provider_info
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.sensors.records import FsmRecordSensor

NOT_TAKEN = {"FsmFormSensor": {"created_since"}, "FsmRegisterWebhookOperator": {"once_per"}}
"""What a base describes and its subclass has under another name, or not at all."""
ATTRIBUTES = {"dry_run_only": "dry_run"}
"""Template fields whose argument has another name."""


def public_operators():
    """Return the operators, sensors and transfers that a user imports."""
    operators = []
    for kind in ("operators", "sensors", "transfers"):
        for entry in get_provider_info()[kind]:
            for module in entry.get("python-modules") or [entry["python-module"]]:
                members = vars(import_module(module)).values()
                operators += [member for member in members if is_public_operator(member, module)]
    return operators


def is_public_operator(member, module):
    is_defined_here = getattr(member, "__module__", "") == module
    if not is_defined_here or not hasattr(member, "execute"):
        return False
    is_base = inspect.getdoc(member).startswith("Base of")
    return member.__name__.startswith("Fsm") and not is_base


PUBLIC = public_operators()


def test_all_of_them_are_here():
    assert len(PUBLIC) == 12


@pytest.mark.parametrize("operator", PUBLIC, ids=lambda operator: operator.__name__)
def test_the_signature_lists_every_parameter(operator):
    described = set()
    for kind in operator.__mro__:
        if kind.__module__.startswith("fsm_provider."):
            described |= set(re.findall(r":param (\w+):", inspect.getdoc(kind) or ""))
    templated = {ATTRIBUTES.get(name, name) for name in operator.template_fields}
    parameters = inspect.signature(operator).parameters.values()

    listed = set()
    for parameter in parameters:
        assert parameter.annotation is not parameter.empty
        if parameter.kind is parameter.KEYWORD_ONLY:
            listed.add(parameter.name)
    assert listed == (described | templated) - NOT_TAKEN.get(operator.__name__, set())


def test_default_arguments_of_a_dag_reach_each_parameter():
    arguments = {
        "fsm_conn_id": "fsm_other",
        "form_names": "Gas",
        "failure_tolerance": 5,
        "xcom": "ids",
    }
    with DAG("dag", schedule=None, default_args=arguments):
        sensor = FsmFormSensor(task_id="wait")
        mapped = FsmFormSensor.partial(task_id="mapped").expand(job=[1, 2]).unmap({"job": 1})

    for task in (sensor, mapped):
        for name, value in arguments.items():
            assert getattr(task, name) == value


@pytest.mark.parametrize(
    ("operator", "unknown"), [(FsmFormSensor, "form_name"), (FsmRecordSensor, "deferrable")]
)
def test_an_unknown_argument_of_a_mapped_task_is_refused_when_the_dag_is_parsed(operator, unknown):
    with pytest.raises(TypeError, match=f"'{unknown}'"):
        operator.partial(task_id="task", **{unknown: True})
