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

PUBLIC = [
    thing
    for kind in ("operators", "sensors", "transfers")
    for entry in get_provider_info()[kind]
    for module in entry.get("python-modules") or [entry["python-module"]]
    for name, thing in vars(import_module(module)).items()
    if name.startswith("Fsm")
    and getattr(thing, "__module__", "") == module
    and hasattr(thing, "execute")
    if not inspect.getdoc(thing).startswith("Base of")
]
NOT_TAKEN = {"FsmFormSensor": {"created_since"}, "FsmRegisterWebhookOperator": {"once_per"}}
"""What a base describes and its subclass has under another name, or not at all."""
ATTRIBUTES = {"dry_run_only": "dry_run"}
"""Template fields whose argument has another name."""


def test_all_of_them_are_here():
    assert len(PUBLIC) == 12


@pytest.mark.parametrize("operator", PUBLIC, ids=lambda one: one.__name__)
def test_the_signature_lists_every_parameter(operator):
    ours = [one for one in operator.__mro__ if one.__module__.startswith("fsm_provider.")]
    described = {
        name for one in ours for name in re.findall(r":param (\w+):", inspect.getdoc(one) or "")
    }
    templated = {ATTRIBUTES.get(name, name) for name in operator.template_fields}
    parameters = inspect.signature(operator).parameters.values()

    listed = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert listed == (described | templated) - NOT_TAKEN.get(operator.__name__, set())
    assert all(one.annotation is not one.empty for one in parameters)


def test_default_arguments_of_a_dag_reach_each_parameter():
    given = {"fsm_conn_id": "fsm_other", "form_names": "Gas", "failure_tolerance": 5, "xcom": "ids"}
    with DAG("dag", schedule=None, default_args=given):
        sensor = FsmFormSensor(task_id="wait")
        mapped = FsmFormSensor.partial(task_id="mapped").expand(job=[1, 2]).unmap({"job": 1})

    for task in (sensor, mapped):
        assert {name: getattr(task, name) for name in given} == given


@pytest.mark.parametrize(
    ("operator", "unknown"), [(FsmFormSensor, "form_name"), (FsmRecordSensor, "deferrable")]
)
def test_an_unknown_argument_of_a_mapped_task_is_refused_when_the_dag_is_parsed(operator, unknown):
    with pytest.raises(TypeError, match=f"'{unknown}'"):
        operator.partial(task_id="task", **{unknown: True})
