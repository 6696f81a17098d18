"""Arguments that operators, sensors and transfers do not have, or refuse when the DAG is parsed."""

import pickle
import re
from functools import partial

import pytest

from fsm_provider.api.errors import FsmInputError
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
            "webhook.event_types: 'created' is not of the form jobs.<event>",
        ),
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
        ({"query_params": {"jobID": None}}, "query_params: "),
    ],
    FsmFormsToObjectStorageOperator: [
        ({"destination": "/x/a.xlsx"}, "destination: /x/a.xlsx should be a file"),
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
