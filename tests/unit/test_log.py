"""What the package logs: one thing is named as one, no text is Python's, and a job has its page."""

import logging
import re
from contextlib import suppress

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout

from fsm_provider.operators.assets import FsmListAssetDynamicFieldsOperator
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.generic import FsmListOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.sensors.records import FsmRecordSensor
from fsm_provider.transfers.assets import FsmAssetDynamicFieldsToObjectStorageOperator
from fsm_provider.transfers.forms import (
    FsmFormPdfsToObjectStorageOperator,
    FsmFormsToObjectStorageOperator,
)
from tests.capabilities import TASK_SDK
from tests.unit.operators.webhooks import BOTH, register, run
from tests.unit.state_store import MemoryStateStore, context_for

SINCE = {"since": "2020-01-01", "timeout": 0}
JOB = {"property_id": 7, "job": {}}
PAGE = "https://app.example.com/7/[0-9]+"
LINES = {
    "listed forms": (
        FsmListFormsOperator,
        {"form_names": ["Gas", "Oil"]},
        r"Listed 1 form \(form_names=Gas or Oil\)",
    ),
    "listed records": (FsmListOperator, {"path": "/forms"}, "Listed 1 record of /forms"),
    "asset fields": (FsmListAssetDynamicFieldsOperator, {}, r"Listed 1 asset dynamic field\b"),
    "a sensor": (
        FsmFormSensor,
        {"form_names": "Oil", "property_id": 7, **SINCE},
        "0 of 1 form: Oil is missing; 1 other form since then: Gas",
    ),
    "a sensor for records": (
        FsmRecordSensor,
        {"path": "/forms", "predicate": bool, "minimum_records": 2, "timeout": 0},
        "1 of 2 records, of 1 at /forms",
    ),
    "an export": (
        FsmFormsToObjectStorageOperator,
        {"destination": "forms.csv"},
        "Exported 1 row, [0-9]+ bytes: .*forms.csv",
    ),
    "an empty export": (
        FsmFormsToObjectStorageOperator,
        {"destination": "none.jsonl", "form_names": "Oil"},
        "Exported 0 rows, 0 bytes: ",
    ),
    "an export of asset fields": (
        FsmAssetDynamicFieldsToObjectStorageOperator,
        {"destination": "fields.jsonl"},
        "Exported [0-9]+ rows?, [0-9]+ bytes: ",
    ),
    "PDFs": (
        FsmFormPdfsToObjectStorageOperator,
        {"destination": "pdfs"},
        "1 PDF: 1 stored; [0-9,]+ bytes",
    ),
    "PDFs by id": (
        FsmFormPdfsToObjectStorageOperator,
        {"destination": "pdfs"},
        r"Looking up 1 form in the listing \(",
    ),
    "a job": (
        FsmCreateJobOperator,
        JOB,
        rf"POST /properties/7/jobs \(.*\): created, id [0-9]+, {PAGE}",
    ),
    "a job of many": (FsmCreateJobsOperator, {"jobs": [JOB]}, rf"created, id [0-9]+, {PAGE}"),
    "many jobs": (FsmCreateJobsOperator, {"jobs": [JOB]}, "1 job: 1 created"),
}


@pytest.fixture
def logged(caplog, capsys):
    """Return what was logged: Airflow 3 writes the log of an operator to standard output."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.text + capsys.readouterr().out


@pytest.mark.parametrize("name", LINES)
def test_one_thing_is_named_as_one(service, connect, tmp_path, logged, name):
    kind, arguments, line = LINES[name]
    connect(service, web_url="https://app.example.com/{propertyID}/{id}")
    form = service.add_form(property_id=7, form_name="Gas")
    service.add_asset_dynamic_field()
    arguments = dict(arguments)
    if "destination" in arguments:
        arguments["destination"] = str(tmp_path / arguments["destination"])
    if kind is FsmFormPdfsToObjectStorageOperator:
        arguments["forms"] = [form["id"]] if "by id" in name else [form]

    with suppress(AirflowSensorTimeout):
        kind(task_id="task", **arguments).execute(context_for(MemoryStateStore()))

    text = logged()
    assert re.search(line, text), text


def test_a_retry_names_the_page_of_the_job_that_is_there(service, connect, logged):
    connect(service, web_url="https://app.example.com/{propertyID}/{id}")
    store = MemoryStateStore()

    job = FsmCreateJobOperator(task_id="task", **JOB).execute(context_for(store))
    FsmCreateJobOperator(task_id="task", **JOB).execute(context_for(store))

    page = f"https://app.example.com/7/{job['id']}"
    assert f"(id {job['id']}, {page}) was sent before, by " in logged()


@TASK_SDK.needed
def test_event_types_are_listed_as_people_list_them(service, connect, variables, logged):
    connect(service)

    register(run("monday"), event_types=BOTH)

    text = logged()
    for event_type in BOTH:
        assert re.search(f"Registered webhook [0-9]+ for {event_type}$", text, re.MULTILINE), text
