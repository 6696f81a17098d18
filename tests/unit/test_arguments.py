"""Arguments that operators, sensors and transfers do not have, or refuse when the DAG is parsed."""

import pickle
import re
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api.errors import FsmInputError
from fsm_provider.assets.forms import completed_forms
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.generic import FsmListOperator, FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.sensors.records import FsmRecordSensor
from fsm_provider.transfers.forms import (
    FsmFormPdfsToObjectStorageOperator,
    FsmFormsToObjectStorageOperator,
)
from tests.capabilities import ASSETS


def test_an_argument_that_does_not_exist_is_named_in_another_process_too():
    with pytest.raises(FsmInputError) as refused:
        FsmFormSensor(task_id="task", form_name=1)

    assert (
        str(refused.value)
        == "form_name: is not an argument of FsmFormSensor: did you mean form_names?"
    )
    assert refused.value.__suppress_context__
    back = pickle.loads(pickle.dumps(refused.value))
    assert (type(back), str(back)) == (type(refused.value), str(refused.value))


@pytest.mark.parametrize(
    ("operator", "other", "name"),
    [
        (FsmFormSensor, "created_since", "since"),
        (FsmFormSensor, "http_conn_id", "fsm_conn_id"),
        (partial(FsmRequestOperator, path="/x"), "data", "json"),
        (FsmCreateJobOperator, "property", "property_id"),
        (partial(FsmCreateJobOperator, job={}), "property", "property_id"),
        (FsmListFormsOperator, "job", "job_id"),
        (partial(FsmRegisterWebhookOperator, object="jobs"), "events", "event_types"),
        (partial(FsmRegisterWebhookOperator, object="jobs"), "url", "target_url"),
    ],
)
def test_an_argument_of_another_operator_leads_to_its_name_here(operator, other, name):
    with pytest.raises(
        FsmInputError, match=f"^{other}: is not an argument of .*: did you mean {name}\\?$"
    ):
        operator(task_id="task", **{other: "x"})


def test_each_argument_that_does_not_exist_is_named():
    with pytest.raises(FsmInputError) as refused:
        FsmCreateJobOperator(
            task_id="task",
            property_id=7,
            job={},
            notes="canary",
            keys="canary",
            customerReference=5,
            x=1,
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


GIVEN = {
    FsmCreateJobOperator: {"property_id": 7, "job": {}},
    FsmCreateJobsOperator: {"jobs": []},
    FsmRequestOperator: {"path": "/x"},
    FsmRegisterWebhookOperator: {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com/fsm",
    },
    FsmRecordSensor: {"path": "/forms", "predicate": bool},
    FsmFormsToObjectStorageOperator: {"destination": "/x.csv"},
    FsmFormPdfsToObjectStorageOperator: {"destination": "/x", "forms": [1]},
}
"""What makes an operator that is accepted."""
SECONDS = "should be a timedelta, or a number of seconds such as 60"
TYPOS = [{"property_id": number, "job": {"notse": "x"}} for number in range(20)]
SAME_KEY = [{"property_id": number, "job": {}, "key": "a"} for number in (1, 2)]


REFUSED = {
    FsmCreateJobOperator: [
        ({"property_id": None}, "property_id: "),
        ({"property_id": ".."}, "property_id: "),
        ({"job": {"quotedAmount": 12.5}}, "job.quotedAmount: should be text or Decimal"),
        ({"job": "PO-1"}, "job: should be a valid dictionary"),
        ({"once_per": "key"}, "key: is missing; once_per='key' needs it"),
    ],
    FsmCreateJobsOperator: [
        ({"max_concurrency": 0}, "max_concurrency: 0 should be an integer of at least 1"),
        ({"max_concurrency": 65}, "max_concurrency: 65 should be at most 64"),
        ({"max_jobs": "many"}, "max_jobs: 'many' should be an integer"),
        ({"dry_run": "perhaps"}, "dry_run: 'perhaps' should be true or false"),
        ({"fail_on": "some"}, "fail_on: 'some' is none of any, uncertain, all, none"),
        ({"if_uncertain": "retry"}, "if_uncertain: 'retry' is none of fail, create"),
        ({"once_per": "day"}, "once_per: 'day' is none of run, key"),
        ({"jobs": TYPOS}, "jobs[0].job.notse: is not known here, or is given in both spellings"),
        ({"jobs": SAME_KEY}, "jobs[1].key: 'a' is the key of jobs[0], another job"),
    ],
    FsmListFormsOperator: [
        ({"created_since": "yesterday"}, "created_since: "),
        ({"job_id": ""}, "job_id: "),
        ({"xcom": "pdf"}, "xcom: 'pdf' is none of references, ids, full"),
    ],
    FsmListOperator: [
        ({"path": "forms"}, "path: 'forms' should start with one /: it is appended to the host"),
    ],
    FsmRequestOperator: [
        (
            {"path": "/forms?x=1"},
            "path: should contain no ? and no #: pass query parameters separately",
        ),
        ({"method": "FETCH"}, "method: 'FETCH'"),
        (
            {"headers": {"Authorization": "x"}},
            "headers: Authorization is set by the client: leave it out",
        ),
        ({"headers": {"X-A": 1}}, "headers: the value of X-A should be"),
        ({"headers": {"X A": "1"}}, "headers: 'X A' is not a valid header"),
        ({"headers": ["X-A"]}, "headers: should map names to values"),
    ],
    FsmRegisterWebhookOperator: [
        (
            {"event_types": ["created"]},
            "webhook.event_types: 'created' is not of the form jobs.<event>, as its object is "
            "'jobs'",
        ),
        ({"event_types": []}, "webhook.event_types: is an empty list"),
        ({"target_url": "/hooks"}, "webhook.target_url"),
        ({"object": "forms", "target_url": None}, "webhook.object"),
        ({"if_uncertain": "perhaps"}, "if_uncertain"),
    ],
    FsmFormSensor: [
        ({"poke_interval": 0.5}, f"poke_interval: {SECONDS}, from 1"),
        ({"failure_tolerance": "10 min"}, f"failure_tolerance: {SECONDS}"),
        (
            {"since": "31.01.2026"},
            "since: '31.01.2026' is no ISO 8601 time such as 2026-01-31T08:00Z",
        ),
        ({"minimum_forms": 0}, "minimum_forms: "),
        ({"form_names": []}, "form_names: is an empty list: leave it out"),
        ({"job_id": ""}, "job_id: "),
        ({"deferrable": "no"}, "deferrable: 'no' should be true or false"),
        (
            {"mode": "deferrable"},
            "mode: should be poke or reschedule; to wait in the triggerer, FsmFormSensor takes "
            "deferrable=True",
        ),
        ({"job": 11, "job_id": 11}, "job: is another way to give job_id; give one of them"),
    ],
    FsmRecordSensor: [
        ({"predicate": "is_done"}, "predicate: should be a function, not str"),
        ({"poke_interval": 0.5}, "poke_interval: "),
        ({"failure_tolerance": float("nan")}, "failure_tolerance: "),
        ({"failure_tolerance": -1}, "failure_tolerance: "),
        ({"path": "forms"}, "path: "),
        ({"minimum_records": 0}, "minimum_records: "),
        ({"fields": []}, "fields: "),
        ({"single": "no"}, "single: 'no' should be true or false"),
        ({"mode": "deferrable"}, "mode: should be poke or reschedule"),
        ({"query_params": {"jobID": None}}, "query_params: "),
    ],
    FsmFormsToObjectStorageOperator: [
        ({"destination": "/x/a.xlsx"}, "destination: /x/a.xlsx should be a file"),
        (
            {"destination": "/x/a.CSV"},
            "destination: /x/a.CSV should be a file whose name ends in .jsonl, .csv or .parquet, "
            "in lower case",
        ),
        ({"destination": "forms.csv"}, "destination: forms.csv is relative, to a folder"),
        ({"destination": "~/forms.csv"}, "destination: ~/forms.csv is relative, to a folder"),
        (
            {"destination": "/x/forms"},
            "destination: /x/forms should be a file whose name ends in .jsonl, .csv or .parquet",
        ),
        ({"destination": " "}, "destination: is empty"),
        ({"quote_formulas": "maybe"}, "quote_formulas: 'maybe' should be true or false"),
        ({"created_before": "soon"}, "created_before: 'soon' is no ISO 8601 time"),
        ({"created_before": 5}, "created_before: should be a time, not int"),
        (
            {"created_since": "2026-01-02", "created_before": "2026-01-02"},
            "created_before: 2026-01-02 00:00:00+00:00 is not after created_since",
        ),
        ({"job_id": ""}, "job_id: is empty"),
    ],
    FsmFormPdfsToObjectStorageOperator: [
        ({"max_concurrency": 65}, "max_concurrency: 65 should be at most 64"),
        ({"max_seconds": "0.5"}, "max_seconds: '0.5' should be an integer of at least 1"),
        (
            {"destination": "s3://bucket/forms?versionId=3"},
            "destination: s3://bucket/forms?versionId=3 is one version of an object",
        ),
        ({"allow_private_addresses": "maybe"}, "allow_private_addresses: "),
        ({"destination": " "}, "destination: is empty"),
        ({"forms": [{"formName": "x"}]}, "forms[0] has no usable 'id'"),
        ({"forms": [7, "seven"]}, "forms[1] has no usable 'id'"),
        (
            {"forms": [{"id": 7, "customerReference": None}]},
            "forms[0]: is a job, not a form: give the output",
        ),
    ],
}


@pytest.mark.parametrize(
    ("operator", "arguments", "message"),
    [(operator, *case) for operator, cases in REFUSED.items() for case in cases],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(operator, arguments, message):
    with pytest.raises(FsmInputError, match=f"^{re.escape(message)}"):
        operator(task_id="task", **{**GIVEN.get(operator, {}), **arguments})


def test_what_belongs_in_a_job_is_said_once():
    with pytest.raises(FsmInputError) as refused:
        FsmCreateJobsOperator(task_id="task", jobs=TYPOS)

    text = str(refused.value)
    assert text.count("jobs[") == len(TYPOS)
    assert text.count("customerReference") == 1
    assert len(text) < 2500


@pytest.mark.parametrize("name", ["customerReference", "customer_reference"])
def test_both_spellings_of_a_field_are_refused(name):
    job = {name: "a", "customer_reference": "b", "customerReference": "c"}

    with pytest.raises(FsmInputError, match=r"^job\.customer_reference: .* both spellings"):
        FsmCreateJobOperator(task_id="task", property_id=7, job=job)


def test_what_belongs_in_a_webhook_is_not_what_belongs_in_a_job(make_client, service):
    webhook = {"object": "jobs", "events": "jobs.created", "target_url": "https://x.example.com/"}

    with pytest.raises(FsmInputError) as refused:
        make_client(service).register_webhook(webhook)

    assert str(refused.value).endswith(
        ". What belongs in a webhook: object, event_types, target_url, description"
    )


def test_a_target_that_can_be_read_on_the_way_is_warned_of_once(caplog):
    for url in ("http://hooks.example.com/a-token", "http://127.0.0.1:8080/x"):
        for _ in range(2):
            FsmRegisterWebhookOperator(
                task_id="task", object="jobs", event_types="jobs.created", target_url=url
            )

    (record,) = [record for record in caplog.records if "target_url" in record.getMessage()]
    assert "use https" in record.getMessage()
    assert "a-token" not in record.getMessage()


@ASSETS.needed
def test_an_argument_that_completed_forms_does_not_have_leads_to_its_name():
    with pytest.raises(FsmInputError) as refused:
        completed_forms("gas_safety", form_name="Gas Safety Record")

    assert str(refused.value) == (
        "form_name: is not an argument of completed_forms: did you mean form_names?"
    )


@pytest.fixture
def connected(service, connect):
    service.add_form()
    connect(service)


BY_HAND = {
    "since_of_no_run": (
        partial(FsmFormSensor, property_id=7),
        "since: is missing: only a task has a run that gives it",
    ),
    "timeout": (
        partial(FsmFormSensor, property_id=99, since="2020-01-01", timeout=0.1),
        "Sensor has timed out.*0 of 1 form",
    ),
    "reschedule": (
        partial(FsmFormSensor, property_id=7, since="2020-01-01", mode="reschedule"),
        "mode: reschedule needs a task; by hand, use poke",
    ),
    "record": (
        partial(FsmRecordSensor, path="/jobs", predicate=bool, timeout=0.1),
        "Sensor has timed out.*0 of 1 record",
    ),
}


@pytest.mark.parametrize(("make", "says"), BY_HAND.values(), ids=BY_HAND)
@pytest.mark.usefixtures("connected")
def test_an_operator_that_is_called_by_hand_says_what_is_wrong(make, says):
    with pytest.raises(AirflowException, match=says):
        make(task_id="task", poke_interval=1).execute({})


@pytest.mark.usefixtures("connected")
def test_a_transfer_that_is_called_by_hand_says_what_is_wrong(tmp_path, caplog):
    transfer = FsmFormPdfsToObjectStorageOperator(
        task_id="task", forms=[4711], destination=str(tmp_path)
    )

    with pytest.raises(AirflowException, match="form 4711 is not in the listing"):
        transfer.execute({})
