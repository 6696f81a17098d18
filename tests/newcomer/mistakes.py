"""Mistakes of the first two hours, and what the message about each has to say.

One line of the message has all of it: the field, and what to do about it.
"""

import json
from dataclasses import dataclass
from textwrap import indent
from typing import Any

TEST = "airflow connections test {name}"
PROBE = "python -m fsm_provider probe {name}"
WITHOUT_FASTAPI = (
    "import sys; sys.modules['fastapi'] = None; from fsm_provider.commands.cli import main; "
    "sys.exit(main(['fake']))"
)
DAG_OF_TASKS = "mistakes"
DAG = """\
from datetime import date, timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.api import Form, jobs_from_rows
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


def read(rows, **map):
    return jobs_from_rows(rows, key="ref", property_id="property", map=map)


@dag(schedule=None, is_paused_upon_creation=False, max_active_tasks=4)
def {name}():
{tasks}


{name}()
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what a line of its message has to say.

    :param text: a command that is typed, or Python of a DAG.
    :param says: all of these, in any order.
    """

    name: str
    text: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


CONNECTIONS: dict[str, dict[str, Any] | str] = {
    "host_without_scheme": {"host": "HOST"},
    "host_without_base_path": {"host": "URL/v2"},
    "http_to_another_machine": {"host": "http://api.example.invalid/v1"},
    "service_not_started": {"host": "http://127.0.0.1:9"},
    "no_host": {"host": ""},
    "wrong_token": {"password": "canary-wrong-token"},
    "token_with_bearer": {"password": "Bearer TOKEN"},
    "no_token": {"password": ""},
    "token_in_extra": {"extra": {"token": "canary-wrong-token"}},
    "typo_in_extra": {"extra": {"curser_param": "cursor"}},
    "timeout_in_words": {"extra": {"timeout": "a minute"}},
    "unknown_time_zone": {"extra": {"server_timezone": "London"}},
    "timeout_of_zero": {"extra": {"timeout": 0}},
    "page_of_no_job": {"extra": {"web_url": "https://app.example.com/jobs"}},
    "wrong_cursor_param": {"extra": {"cursor_param": "page"}},
    "wrong_cursor_param_probed": {"extra": {"cursor_param": "page"}},
    "connection_in_single_quotes": "{'conn_type': 'fsm', 'host': 'URL', 'password': 'TOKEN'}",
    "connection_of_another_type": {"conn_type": "http"},
    "ledger_not_defined": {"extra": {"state_conn_id": "fsm_ledgr"}},
    "ledger_in_a_relative_path": {"extra": {"state_conn_id": "relative_ledger"}},
    "relative_ledger": {"conn_type": "sqlite", "host": "fsm_ledger.db"},
    "no_ledger": {},
}
"""How they differ from the right one; as text, what is typed."""


def connections(url: str, token: str) -> dict[str, str]:
    """Give the connections that are defined, as text by their names.

    :param url: the service's.
    :param token: the service's.
    """
    _, _, host = url.partition("//")
    right = {
        "conn_type": "fsm",
        "host": "URL",
        "password": "TOKEN",
        "extra": {},
    }
    texts: dict[str, str] = {}
    for name, changes in CONNECTIONS.items():
        text = changes if isinstance(changes, str) else json.dumps(right | changes)
        text = text.replace("URL", url)
        text = text.replace("HOST", host)
        texts[name] = text.replace("TOKEN", token)
    return texts


COMMANDS = [
    Mistake(
        name="host_without_scheme",
        text=PROBE,
        says=(
            "HOST was not reached",
            "if it speaks http, begin host with http://",
        ),
    ),
    Mistake(
        name="host_without_base_path",
        text=TEST,
        says=(
            "HTTP 404",
            "nothing at URL/v2/forms",
            "base path in the connection's host",
        ),
    ),
    Mistake(
        name="http_to_another_machine",
        text=PROBE,
        says=(
            "host: http would send the token in the clear",
            "use https, or set allow_http",
        ),
    ),
    Mistake(
        name="service_not_started",
        text=TEST,
        says=(
            "http://127.0.0.1:9 was not reached",
            "Connection refused",
        ),
    ),
    Mistake(
        name="no_host",
        text=PROBE,
        says=(
            "connection 'no_host': host: is missing: it should be the base",
            "e.g. https://",
        ),
    ),
    Mistake(
        name="wrong_token",
        text=TEST,
        says=(
            "HTTP 401",
            "the token is not accepted: check the connection's password",
        ),
    ),
    Mistake(
        name="token_with_bearer",
        text=PROBE,
        says=("password: should be the bare token",),
    ),
    Mistake(
        name="no_token",
        text=PROBE,
        says=("password: is empty: it should be the API token",),
    ),
    Mistake(
        name="token_in_extra",
        text=PROBE,
        says=("extra: token is not one of its settings: it is the connection's password",),
    ),
    Mistake(
        name="typo_in_extra",
        text=TEST,
        says=("curser_param: is not a setting; these are: ",),
    ),
    Mistake(
        name="timeout_in_words",
        text=PROBE,
        says=("connection 'timeout_in_words': timeout: should be a valid number",),
    ),
    Mistake(
        name="unknown_time_zone",
        text=PROBE,
        says=(
            "server_timezone: ",
            "London",
        ),
    ),
    Mistake(
        name="timeout_of_zero",
        text=PROBE,
        says=("timeout: ",),
    ),
    Mistake(
        name="page_of_no_job",
        text=PROBE,
        says=(
            "web_url: should be https, and contain {id}",
            "https://app.example.com/jobs/{id}",
        ),
    ),
    Mistake(
        name="wrong_cursor_param",
        text=TEST,
        says=(
            "page 2 of the listing holds the same records",
            "'page'",
            "set cursor_param",
        ),
    ),
    Mistake(
        name="wrong_cursor_param_probed",
        text=PROBE,
        says=("cursor_param is cursor: with it the second page followed the first",),
    ),
    Mistake(
        name="connection_not_defined",
        text=PROBE,
        says=(
            "connection_not_defined",
            "is not defined",
        ),
    ),
    Mistake(
        name="connection_in_single_quotes",
        text=PROBE,
        says=(
            "AIRFLOW_CONN_CONNECTION_IN_SINGLE_QUOTES",
            "JSON",
        ),
    ),
    Mistake(
        name="typo_in_command",
        text="python -m fsm_provider prob",
        says=(
            "invalid choice: 'prob'",
            "'probe'",
        ),
    ),
    Mistake(
        name="fake_twice",
        text="python -m fsm_provider fake --form-after 5",
        says=("ddress already in use",),
    ),
    Mistake(
        name="fake_without_its_extra",
        text=f'python -c "{WITHOUT_FASTAPI}"',
        says=("pip install 'airflow-provider-fsm[testing]'",),
    ),
]
IMPORTS = [
    # A job.
    Mistake(
        name="typo_in_job_field",
        text='FsmCreateJobOperator(task_id="t", property_id=7, job={"customerRefernce": "PO-1"})',
        says=(
            "job.customerRefernce: is not known",
            "customerReference",
        ),
    ),
    Mistake(
        name="field_beside_job",
        text=(
            'FsmCreateJobsOperator(task_id="t", jobs=[{"property_id": 7, '
            '"customerReference": "PO-1"}])'
        ),
        says=(
            "jobs[0].customerReference",
            "belongs in a job",
        ),
    ),
    Mistake(
        name="amount_with_currency",
        text='FsmCreateJobOperator(task_id="t", property_id=7, job={"quotedAmount": "£99"})',
        says=(
            "job.quotedAmount: should be an amount such as '120' or '99.50', as text or Decimal",
        ),
    ),
    Mistake(
        name="number_as_notes",
        text='FsmCreateJobOperator(task_id="t", property_id=7, job={"notes": 7})',
        says=("job.notes: should be a valid string",),
    ),
    Mistake(
        name="date_in_a_job",
        text='FsmCreateJobOperator(task_id="t", property_id=7, job={"skills": date(2026, 1, 31)})',
        says=("job.skills: input was not a valid JSON value",),
    ),
    Mistake(
        name="address_as_property",
        text='FsmCreateJobOperator(task_id="t", property_id="7 High Street", job={})',
        says=(
            "property_id: '7 High Street' is not an identifier",
            "without blanks",
        ),
    ),
    Mistake(
        name="property_for_property_id",
        text='FsmCreateJobOperator(task_id="t", property=7, job={})',
        says=(
            "property: is not an argument of FsmCreateJobOperator",
            "did you mean property_id?",
        ),
    ),
    Mistake(
        name="tuples_as_jobs",
        text='FsmCreateJobsOperator(task_id="t", jobs=[("PM-1", 7)])',
        says=("jobs[0]: should be a valid dictionary",),
    ),
    Mistake(
        name="wrong_job_of_many",
        text=(
            'good = {"property_id": 7, "job": {}}\n'
            'bad = {"property_id": 7, "job": {"notes": 1}, "key": "C-100-2026"}\n'
            'FsmCreateJobsOperator(task_id="t", jobs=[good] * 12 + [bad])'
        ),
        says=(
            "jobs[12]",
            "key 'C-100-2026'",
        ),
    ),
    # Rows of a table.
    Mistake(
        name="reversed_map",
        text='read([{"ref": "a", "property": 7, "note": "x"}], note="notes")',
        says=(
            "map: a job has no field 'note'",
            "the wrong way round: {'notes': 'note'}",
        ),
    ),
    Mistake(
        name="rows_as_tuples",
        text='read([("a", 7)])',
        says=(
            "row 1 of the list should be a mapping",
            "dict(zip(columns, row))",
            "not tuple",
        ),
    ),
    Mistake(
        name="date_cell",
        text='read([{"ref": "a", "property": 7, "due": date(2026, 1, 31)}], notes="due")',
        says=("row 1 (key 'a'): due: should be text or a number, not date: give its isoformat()",),
    ),
    # Forms.
    Mistake(
        name="name_of_a_sensor",
        text='FsmFormSensor(task_id="t", property_id=7, form_name="Gas Safety Record")',
        says=("form_name: is not an argument of FsmFormSensor: did you mean form_names?",),
    ),
    Mistake(
        name="mode_deferrable",
        text='FsmFormSensor(task_id="t", property_id=7, mode="deferrable")',
        says=(
            "mode: should be poke or reschedule",
            "deferrable=True",
        ),
    ),
    Mistake(
        name="deferrable_in_words",
        text='FsmFormSensor(task_id="t", property_id=7, deferrable="no")',
        says=("deferrable: 'no' should be true or false",),
    ),
    Mistake(
        name="relative_destination",
        text='FsmFormsToObjectStorageOperator(task_id="t", destination="forms.csv")',
        says=("destination: forms.csv is relative", "give an absolute path"),
    ),
    Mistake(
        name="both_spellings",
        text=(
            'FsmCreateJobOperator(task_id="t", property_id=7, '
            'job={"customerReference": "a", "customer_reference": "b"})'
        ),
        says=("job.customer_reference: is not known here, or is given in both spellings",),
    ),
    Mistake(
        name="property_of_a_listing",
        text='FsmListFormsOperator(task_id="t", property=7)',
        says=("property: is not an argument of FsmListFormsOperator: did you mean property_id?",),
    ),
    Mistake(
        name="attribute_by_the_services_name",
        text="Form(id=1).formName",
        says=("formName is the service's name: here it is form_name",),
    ),
    # Any path, and webhooks.
    Mistake(
        name="python_as_json",
        text='FsmRequestOperator(task_id="t", path="/x", method="POST", json="{\'a\': 1}")',
        says=("json: is text, but no JSON: end its template with | tojson",),
    ),
    Mistake(
        name="unknown_webhook_object",
        text='FsmRegisterWebhookOperator(task_id="t", object="job", event_types="job.created")',
        says=(
            "webhook.object",
            "should be ",
            "'jobs'",
        ),
    ),
]
COMMON_TASKS = """
@task
def rows():
    return [
        {"property_id": 7, "job": {"notes": "1"}},
        {"property_id": 7, "job": {"notes": "2"}},
    ]

job = FsmCreateJobOperator(task_id="job", property_id=7, job={"notes": "3"})
several = [{"notes": "4"}, {"notes": "5"}]
jobs = FsmCreateJobOperator.partial(task_id="jobs", property_id=7).expand(job=several)
forms = FsmFormSensor.partial(task_id="forms", poke_interval=5).expand(job=jobs.output)
rows = rows()
"""
"""What the tasks that fail have as input."""
TASKS = [
    Mistake(
        name="connection_of_another_type",
        text='FsmListOperator(task_id="{name}", fsm_conn_id="{name}", path="/forms")',
        says=("connection 'connection_of_another_type': is of type 'http', not 'fsm'",),
    ),
    Mistake(
        name="typo_in_conn_id",
        text='FsmListOperator(task_id="{name}", fsm_conn_id="fsm_defualt", path="/forms")',
        says=(
            "fsm_defualt",
            "is not defined",
        ),
    ),
    Mistake(
        name="token_that_is_refused",
        text='FsmListOperator(task_id="{name}", fsm_conn_id="wrong_token", path="/forms")',
        says=(
            "HTTP 401",
            "check the connection's password; connection 'wrong_token'",
        ),
    ),
    Mistake(
        name="permission_that_lacks",
        text='FsmListOperator(task_id="{name}", path="/jobs")',
        says=(
            "HTTP 403",
            "the token lacks the permission, or a proxy or firewall refused the request",
            "connection 'fsm_default'",
        ),
    ),
    Mistake(
        name="ledger_not_defined",
        text='FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, job={})',
        says=(
            "state_conn_id",
            "fsm_ledgr",
            "is not defined",
        ),
    ),
    Mistake(
        name="ledger_in_a_relative_path",
        text='FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, job={})',
        says=(
            "state_conn_id",
            "'relative_ledger': its host should be the absolute path of a file",
        ),
    ),
    Mistake(
        name="no_ledger",
        text=(
            'FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, '
            'job={}, key="a", once_per="key")'
        ),
        says=('state_conn_id: is missing: once_per="key"',),
    ),
    Mistake(
        name="property_that_is_none",
        text=(
            'FsmCreateJobOperator(task_id="{name}", job={}, '
            "property_id=\"{{ ti.xcom_pull(task_ids='no_such_task') }}\")"
        ),
        says=("property_id: is the text 'None': the template that it comes from found nothing",),
    ),
    Mistake(
        name="property_that_does_not_exist",
        text='FsmCreateJobOperator(task_id="{name}", property_id=8, job={})',
        says=(
            "/properties/8/jobs",
            "HTTP 404",
            "connection 'fsm_default'",
            "check the identifier in the path",
        ),
    ),
    Mistake(
        name="jobs_without_tojson",
        text='rows >> FsmCreateJobsOperator(task_id="{name}", jobs="{{ ti.xcom_pull(\'rows\') }}")',
        says=("jobs: is text, but no JSON: end its template with | tojson",),
    ),
    Mistake(
        name="equal_jobs",
        text='FsmCreateJobsOperator(task_id="{name}", jobs=[{"property_id": 7, "job": {}}] * 2)',
        says=("jobs[1]: is equal to jobs[0]: leave one out, or give both keys",),
    ),
    Mistake(
        name="more_jobs_than_allowed",
        text='FsmCreateJobsOperator(task_id="{name}", jobs=rows, max_jobs=1)',
        says=("max_jobs: 2 jobs are to be created, and one attempt may create 1: none was sent",),
    ),
    Mistake(
        name="record_as_listing",
        text=(
            'job >> FsmListOperator(task_id="{name}", '
            "path=\"/jobs/{{ ti.xcom_pull('job')['id'] }}\")"
        ),
        says=("path: returned one record, and no listing: use FsmRequestOperator",),
    ),
    Mistake(
        name="one_job_as_jobs",
        text='FsmCreateJobsOperator(task_id="{name}", jobs=job.output)',
        says=("jobs: should be a list of jobs, not dict",),
    ),
    Mistake(
        name="record_in_place_of_id",
        text='job >> FsmFormSensor(task_id="{name}", job_id="{{ ti.xcom_pull(\'job\') }}")',
        says=(
            "job_id: is a complete record or list as text",
            "['id']",
        ),
    ),
    Mistake(
        name="jobs_of_a_mapped_task",
        text='FsmFormSensor(task_id="{name}", job=jobs.output)',
        says=(
            "job: is a list",
            "map index of a mapped task",
            ".expand(job=...)",
        ),
    ),
    Mistake(
        name="form_under_another_name",
        text=(
            'FsmFormSensor(task_id="{name}", job=job.output, '
            'form_names=["Gas Safety Recrod"], deferrable=True, poke_interval=5, '
            "timeout=timedelta(seconds=25))"
        ),
        says=(
            "Sensor has timed out",
            "Gas Safety Recrod",
            "1 other form since then: Gas Safety Record",
        ),
    ),
    Mistake(
        name="forms_of_a_mapped_task",
        text=(
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=forms.output, '
            'destination="/tmp")'
        ),
        says=(
            "forms[0]: is a list",
            "map index of a mapped task",
            ".expand(forms=...)",
        ),
    ),
    Mistake(
        name="job_as_forms",
        text=(
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=job.output, '
            'destination="/tmp")'
        ),
        says=("forms: should be a list of forms, as sensors give, not dict",),
    ),
    Mistake(
        name="jobs_as_forms",
        text=(
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=[job.output], '
            'destination="/tmp")'
        ),
        says=("forms[0]: is a job, not a form: give the output of a sensor",),
    ),
    Mistake(
        name="form_that_is_not_there",
        text=(
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=[4711], destination="/tmp")'
        ),
        says=("forms[0]: form 4711 is not in the listing",),
    ),
    Mistake(
        name="folder_that_cannot_be_made",
        text=(
            'FsmFormsToObjectStorageOperator(task_id="{name}", '
            'destination="/dev/null/forms/all.csv")'
        ),
        says=(
            "destination: ",
            "/dev/null/forms cannot be made: ",
            "Not a directory",
        ),
    ),
    Mistake(
        name="storage_without_its_provider",
        text=(
            'FsmFormsToObjectStorageOperator(task_id="{name}", destination="s3://bucket/forms.csv")'
        ),
        says=("destination: s3://bucket/forms.csv needs apache-airflow-providers-amazon[s3fs]",),
    ),
    Mistake(
        name="format_without_its_extra",
        text='FsmFormsToObjectStorageOperator(task_id="{name}", destination="/tmp/forms.parquet")',
        says=("airflow-provider-fsm[parquet]",),
    ),
    Mistake(
        name="webhook_without_receiver",
        text=(
            'FsmRegisterWebhookOperator(task_id="{name}", object="jobs", '
            'event_types="jobs.created")'
        ),
        says=(
            "target_url: is missing, and no Variable fsm_webhooks has a base_url and an endpoint",
        ),
    ),
]


def dag_files() -> dict[str, str]:
    """Give the DAG files by their names.

    There is one for each import that breaks, and one of all tasks that fail.
    """
    files = {mistake.name: _dag_file(mistake.name, mistake.text) for mistake in IMPORTS}
    tasks = [mistake.text.replace("{name}", mistake.name) for mistake in TASKS]
    files[DAG_OF_TASKS] = _dag_file(DAG_OF_TASKS, "\n".join([COMMON_TASKS, *tasks]))
    return files


def _dag_file(name: str, tasks: str) -> str:
    text = DAG.replace("{name}", name)
    return text.replace("{tasks}", indent(tasks, "    "))
