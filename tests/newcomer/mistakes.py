"""Mistakes of the first two hours, and what the message about each has to say.

One line of the message has all of it: the field, and what to do about it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any

TEST = "airflow connections test {name}"
PROBE = "python -m fsm_provider probe {name}"
WITHOUT_FASTAPI = "import sys; sys.modules['fastapi'] = None; from fsm_provider.commands.cli import main; sys.exit(main(['fake']))"
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
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator, FsmFormsToObjectStorageOperator


def read(rows, **map):
    return jobs_from_rows(rows, key="ref", property_id="property", map=map)


@dag(schedule=None, is_paused_upon_creation=False, max_active_tasks=4)
def {name}():
{tasks}


{name}()
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake: a command that is typed, or Python of a DAG."""

    name: str
    text: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def table(rows: Mapping[str, tuple[str, ...]]) -> list[Mistake]:
    return [Mistake(name, text, tuple(says)) for name, (text, *says) in rows.items()]


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
    right = {"conn_type": "fsm", "host": "URL", "password": "TOKEN", "extra": {}}
    texts = {
        name: changes if isinstance(changes, str) else json.dumps(right | changes)
        for name, changes in CONNECTIONS.items()
    }
    real = {"URL": url, "HOST": url.partition("//")[2], "TOKEN": token}
    for shown, is_really in real.items():
        texts = {name: text.replace(shown, is_really) for name, text in texts.items()}
    return texts


COMMANDS = table(
    {
        "host_without_scheme": (PROBE, "HOST was not reached", "does the host speak http?"),
        "host_without_base_path": (
            *(TEST, "HTTP 404", "nothing at URL/v2/forms", "base path in the connection's host"),
        ),
        "http_to_another_machine": (
            *(
                PROBE,
                "host: http would send the token in the clear",
                "use https, or set allow_http",
            ),
        ),
        "service_not_started": (TEST, "http://127.0.0.1:9 was not reached", "Connection refused"),
        "no_host": (
            PROBE,
            "connection 'no_host': host: is missing: it should be the base",
            "e.g. https://",
        ),
        "wrong_token": (
            TEST,
            "HTTP 401",
            "the token is not accepted: check the connection's password",
        ),
        "token_with_bearer": (PROBE, "password: should be the bare token"),
        "no_token": (PROBE, "password: is empty: it should be the API token"),
        "token_in_extra": (
            PROBE,
            "extra: token is not one of its settings: it is the connection's password",
        ),
        "typo_in_extra": (TEST, "curser_param: is not a setting; these are: "),
        "timeout_in_words": (
            PROBE,
            "connection 'timeout_in_words': timeout: should be a valid number",
        ),
        "unknown_time_zone": (PROBE, "server_timezone: ", "London"),
        "timeout_of_zero": (PROBE, "timeout: "),
        "page_of_no_job": (
            PROBE,
            "web_url: should be https, and contain {id}",
            "https://app.example.com/jobs/{id}",
        ),
        "wrong_cursor_param": (
            *(TEST, "page 2 of the listing holds the same records", "'page'"),
            "set cursor_param on the connection",
        ),
        "wrong_cursor_param_probed": (
            *(PROBE, "cursor_param is cursor: with it the second page followed the first"),
        ),
        "connection_not_defined": (PROBE, "connection_not_defined", "isn't defined"),
        "connection_in_single_quotes": (PROBE, "AIRFLOW_CONN_CONNECTION_IN_SINGLE_QUOTES", "JSON"),
        "typo_in_command": ("python -m fsm_provider prob", "invalid choice: 'prob'", "'probe'"),
        "fake_twice": ("python -m fsm_provider fake --form-after 5", "ddress already in use"),
        "fake_without_its_extra": (
            f'python -c "{WITHOUT_FASTAPI}"',
            "pip install 'airflow-provider-fsm[testing]'",
        ),
    }
)
IMPORTS = table(
    {
        # A job.
        "typo_in_job_field": (
            'FsmCreateJobOperator(task_id="t", property_id=7, job={"customerRefernce": "PO-1"})',
            *("job.customerRefernce: is not known", "customerReference"),
        ),
        "field_beside_job": (
            'FsmCreateJobsOperator(task_id="t", jobs=[{"property_id": 7, "customerReference": "PO-1"}])',
            *("jobs[0].customerReference", "belongs in a job"),
        ),
        "amount_with_currency": (
            'FsmCreateJobOperator(task_id="t", property_id=7, job={"quotedAmount": "£99"})',
            "job.quotedAmount: should be an amount such as '120' or '99.50', as text or Decimal",
        ),
        "number_as_notes": (
            'FsmCreateJobOperator(task_id="t", property_id=7, job={"notes": 7})',
            "job.notes: should be a valid string",
        ),
        "date_in_a_job": (
            'FsmCreateJobOperator(task_id="t", property_id=7, job={"skills": date(2026, 1, 31)})',
            "job.skills: input was not a valid JSON value",
        ),
        "address_as_property": (
            'FsmCreateJobOperator(task_id="t", property_id="7 High Street", job={})',
            *("property_id: is not an identifier", "without blanks"),
        ),
        "property_for_property_id": (
            'FsmCreateJobOperator(task_id="t", property=7, job={})',
            "missing keyword argument 'property_id'",
        ),
        "tuples_as_jobs": (
            'FsmCreateJobsOperator(task_id="t", jobs=[("PM-1", 7)])',
            "jobs[0]: should be a valid dictionary",
        ),
        "wrong_job_of_many": (
            'one = {"property_id": 7, "job": {}}\n'
            'bad = {"property_id": 7, "job": {"notes": 1}, "key": "C-100-2026"}\n'
            'FsmCreateJobsOperator(task_id="t", jobs=[one] * 12 + [bad])',
            *("jobs[12]", "key 'C-100-2026'"),
        ),
        # Rows of a table.
        "reversed_map": (
            'read([{"ref": "a", "property": 7, "note": "x"}], note="notes")',
            *("map: a job has no field 'note'", "the wrong way round: {'notes': 'note'}"),
        ),
        "rows_as_tuples": (
            'read([("a", 7)])',
            *("row 1 of the list should be a mapping", "dict(zip(columns, row))", "not tuple"),
        ),
        "date_cell": (
            'read([{"ref": "a", "property": 7, "due": date(2026, 1, 31)}], notes="due")',
            "row 1 (key 'a'): due: should be text or a number, not date: give its isoformat()",
        ),
        # Forms.
        "property_of_a_listing": (
            'FsmListFormsOperator(task_id="t", property=7)',
            "property: is not an argument of FsmListFormsOperator: did you mean property_id?",
        ),
        "attribute_by_the_services_name": (
            "Form(id=1).formName",
            "formName is the service's name: here it is form_name",
        ),
        # Any path, and webhooks.
        "python_as_json": (
            'FsmRequestOperator(task_id="t", path="/x", method="POST", json="{\'a\': 1}")',
            "json: is text, but no JSON: end its template with | tojson",
        ),
        "unknown_webhook_object": (
            'FsmRegisterWebhookOperator(task_id="t", object="job", event_types="job.created")',
            *("webhook.object", "should be ", "'jobs'"),
        ),
    }
)
COMMON_TASKS = """
@task
def rows():
    return [{"property_id": 7, "job": {"notes": one}} for one in ("1", "2")]

job = FsmCreateJobOperator(task_id="job", property_id=7, job={"notes": "3"})
several = [{"notes": "4"}, {"notes": "5"}]
jobs = FsmCreateJobOperator.partial(task_id="jobs", property_id=7).expand(job=several)
forms = FsmFormSensor.partial(task_id="forms", poke_interval=5).expand(job=jobs.output)
rows = rows()
"""
"""What the tasks that fail have as input."""
TASKS = table(
    {
        "connection_of_another_type": (
            'FsmListOperator(task_id="{name}", fsm_conn_id="{name}", path="/forms")',
            "connection 'connection_of_another_type': is of type 'http', not 'fsm'",
        ),
        "typo_in_conn_id": (
            'FsmListOperator(task_id="{name}", fsm_conn_id="fsm_defualt", path="/forms")',
            *("fsm_defualt", "isn't defined"),
        ),
        "token_that_is_refused": (
            'FsmListOperator(task_id="{name}", fsm_conn_id="wrong_token", path="/forms")',
            *("HTTP 401", "check the connection's password; connection 'wrong_token'"),
        ),
        "permission_that_lacks": (
            'FsmListOperator(task_id="{name}", path="/users")',
            *("HTTP 403", "the token lacks the permission; connection 'fsm_default'"),
        ),
        "ledger_not_defined": (
            'FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, job={})',
            *("state_conn_id", "fsm_ledgr", "isn't defined"),
        ),
        "ledger_in_a_relative_path": (
            'FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, job={})',
            *("state_conn_id", "'relative_ledger': its host should be the absolute path of a file"),
        ),
        "no_ledger": (
            'FsmCreateJobOperator(task_id="{name}", fsm_conn_id="{name}", property_id=7, job={}, key="a", '
            'once_per="key")',
            'state_conn_id: is missing: once_per="key"',
        ),
        "property_that_is_none": (
            'FsmCreateJobOperator(task_id="{name}", job={}, '
            "property_id=\"{{ ti.xcom_pull(task_ids='no_such_task') }}\")",
            "property_id: is the text 'None': the template that it comes from found nothing",
        ),
        "property_that_does_not_exist": (
            'FsmCreateJobOperator(task_id="{name}", property_id=8, job={})',
            *(
                "/properties/8/jobs",
                "HTTP 404",
                "connection 'fsm_default'",
                "check the identifier in the path",
            ),
        ),
        "jobs_without_tojson": (
            'rows >> FsmCreateJobsOperator(task_id="{name}", jobs="{{ ti.xcom_pull(\'rows\') }}")',
            "jobs: is text, but no JSON: end its template with | tojson",
        ),
        "equal_jobs": (
            'FsmCreateJobsOperator(task_id="{name}", jobs=[{"property_id": 7, "job": {}}] * 2)',
            "jobs[1]: is equal to jobs[0]: leave one out, or give both keys",
        ),
        "more_jobs_than_allowed": (
            'FsmCreateJobsOperator(task_id="{name}", jobs=rows, max_jobs=1)',
            "max_jobs: 2 jobs are to be created, and one attempt may create 1: none was sent",
        ),
        "one_job_as_jobs": (
            'FsmCreateJobsOperator(task_id="{name}", jobs=job.output)',
            "jobs: should be a list of jobs, not dict",
        ),
        "record_in_place_of_id": (
            'job >> FsmFormSensor(task_id="{name}", job_id="{{ ti.xcom_pull(\'job\') }}")',
            *("job_id: is a complete record or list as text", "['id']"),
        ),
        "jobs_of_a_mapped_task": (
            'FsmFormSensor(task_id="{name}", job=jobs.output)',
            *("job: is a list", "map index of a mapped task", ".expand(job=...)"),
        ),
        "form_under_another_name": (
            'FsmFormSensor(task_id="{name}", job=job.output, form_names=["Gas Safety Recrod"], '
            "deferrable=True, poke_interval=5, timeout=timedelta(seconds=25))",
            *(
                "Sensor has timed out",
                "Gas Safety Recrod",
                "1 other form since then: Gas Safety Record",
            ),
        ),
        "forms_of_a_mapped_task": (
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=forms.output, destination="/tmp")',
            *("forms[0]: is a list", "map index of a mapped task", ".expand(forms=...)"),
        ),
        "job_as_forms": (
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=job.output, destination="/tmp")',
            "forms: should be a list of forms, as sensors give, not dict",
        ),
        "jobs_as_forms": (
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=[job.output], destination="/tmp")',
            "forms[0]: is a job, not a form: give the output of a sensor",
        ),
        "form_that_is_not_there": (
            'FsmFormPdfsToObjectStorageOperator(task_id="{name}", forms=[4711], destination="/tmp")',
            "forms[0]: form 4711 is not in the listing",
        ),
        "folder_that_cannot_be_made": (
            'FsmFormsToObjectStorageOperator(task_id="{name}", destination="/dev/null/forms/all.csv")',
            *("destination: ", "/dev/null/forms cannot be made: ", "Not a directory"),
        ),
        "storage_without_its_provider": (
            'FsmFormsToObjectStorageOperator(task_id="{name}", destination="s3://bucket/forms.csv")',
            "destination: s3://bucket/forms.csv needs apache-airflow-providers-amazon[s3fs]",
        ),
        "format_without_its_extra": (
            'FsmFormsToObjectStorageOperator(task_id="{name}", destination="/tmp/forms.parquet")',
            "airflow-provider-fsm[parquet]",
        ),
        "webhook_without_receiver": (
            'FsmRegisterWebhookOperator(task_id="{name}", object="jobs", event_types="jobs.created")',
            "target_url: is missing, and no Variable fsm_webhooks has a base_url and an endpoint",
        ),
    }
)


def dag_files() -> dict[str, str]:
    """Give the DAG files by their names: one for each import that breaks, and one of all tasks that
    fail.
    """
    tasks = [COMMON_TASKS, *(one.text.replace("{name}", one.name) for one in TASKS)]
    texts = {one.name: one.text for one in IMPORTS} | {DAG_OF_TASKS: "\n".join(tasks)}
    return {
        name: DAG.replace("{name}", name).replace("{tasks}", indent(text, "    "))
        for name, text in texts.items()
    }
