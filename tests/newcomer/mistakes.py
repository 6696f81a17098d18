"""Mistakes of the first two hours, and what the message about each has to say.

One line of the message has all of it: the field, and what to do about it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

TEST = "airflow connections test {name}"
PROBE = "python -m fsm_provider probe {name}"
DAG = """\
from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator


@dag(schedule=None, is_paused_upon_creation=False)
def {name}():
{tasks}


{name}()
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what is seen of it: of a command, of the import of a DAG, or of a task.

    :param name: of the row, of its DAG, and of its connection.
    :param says: parts of one line of the message.
    :param command: what is typed, unless the mistake is in a DAG.
    :param tasks: the tasks of a DAG.
    :param breaks_import: whether Airflow shows the message in place of the DAG.
    :param connection: how the connection differs from the right one; as text, what is typed for it.
    :param further: other connections, by their names.
    """

    name: str
    says: tuple[str, ...]
    command: str = ""
    tasks: str = ""
    breaks_import: bool = False
    connection: Mapping[str, Any] | str | None = None
    further: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def is_run(self) -> bool:
        """Whether a task of a run meets it."""
        return bool(self.tasks) and not self.breaks_import

    def connections(self, url: str, token: str) -> dict[str, str]:
        """Give the connections that are defined, as text by their names.

        :param url: the service's.
        :param token: the service's.
        """
        given = {name: json.dumps(one) for name, one in self.further.items()}
        if isinstance(self.connection, str):
            return {self.name: self.connection.replace("URL", url).replace("TOKEN", token), **given}
        if self.connection is None:
            return given
        changes = {
            name: value.replace("URL", url).replace("HOST", url.partition("//")[2]).replace("TOKEN", token)
            if isinstance(value, str)
            else value
            for name, value in self.connection.items()
        }
        right = {"conn_type": "fsm", "host": url, "password": token, "extra": {}}
        return {self.name: json.dumps(right | changes), **given}

    def dag(self) -> str:
        """Give the DAG file."""
        return DAG.format(name=self.name, tasks=indent(self.tasks.strip("\n"), "    "))


MISTAKES = [
    # The connection, as its test or the probe sees it.
    Mistake(
        "host_without_scheme",
        ("HOST was not reached", "the connection's host has no scheme", "http://"),
        command=PROBE,
        connection={"host": "HOST"},
    ),
    Mistake(
        "host_without_base_path",
        ("HTTP 404", "nothing at URL/v2/forms", "base path in the connection's host"),
        command=TEST,
        connection={"host": "URL/v2"},
    ),
    Mistake(
        "http_to_another_machine",
        ("host: http would send the token in the clear", "use https, or set allow_http"),
        command=TEST,
        connection={"host": "http://api.example.invalid/v1"},
    ),
    Mistake(
        "service_not_started",
        ("http://127.0.0.1:9 was not reached", "Connection refused"),
        command=TEST,
        connection={"host": "http://127.0.0.1:9"},
    ),
    Mistake(
        "wrong_token",
        ("HTTP 401", "the token is not accepted: check the connection's password"),
        command=TEST,
        connection={"password": "canary-wrong-token"},
    ),
    Mistake(
        "token_with_bearer",
        ("password: should be the bare token",),
        command=TEST,
        connection={"password": "Bearer TOKEN"},
    ),
    Mistake(
        "no_token",
        ("password: is empty: it should be the API token",),
        command=TEST,
        connection={"password": ""},
    ),
    Mistake(
        "typo_in_extra",
        ("curser_param: is not a setting; these are: ",),
        command=TEST,
        connection={"extra": {"curser_param": "cursor"}},
    ),
    Mistake(
        "wrong_cursor_param",
        ("page 2 of the listing holds the same records", "'page'", "set cursor_param on the connection"),
        command=TEST,
        connection={"extra": {"cursor_param": "page"}},
    ),
    Mistake(
        "wrong_cursor_param_probed",
        ("cursor_param is cursor: with it the second page of /forms followed the first",),
        command=PROBE,
        connection={"extra": {"cursor_param": "page"}},
    ),
    Mistake("connection_not_defined", ("connection_not_defined", "isn't defined"), command=PROBE),
    Mistake(
        "connection_in_single_quotes",
        ("AIRFLOW_CONN_CONNECTION_IN_SINGLE_QUOTES", "JSON"),
        command=PROBE,
        connection="{'conn_type': 'fsm', 'host': 'URL', 'password': 'TOKEN'}",
    ),
    # What breaks the import of a DAG.
    Mistake(
        "typo_in_job_field",
        (
            "job.customerRefernce: is not known",
            "customerReference",
        ),
        tasks="""FsmCreateJobOperator(task_id="create", property_id=7, job={"customerRefernce": "PO-1"})""",
        breaks_import=True,
    ),
    Mistake(
        "field_beside_job",
        ("jobs[0].customerReference", "belongs in a job"),
        tasks="""
FsmCreateJobsOperator(task_id="create_jobs", jobs=[{"property_id": 7, "customerReference": "PO-1"}])
""",
        breaks_import=True,
    ),
    Mistake(
        "amount_as_float",
        ("job.quotedAmount: should be text or Decimal",),
        tasks="""FsmCreateJobOperator(task_id="create_job", property_id=7, job={"quotedAmount": 99.5})""",
        breaks_import=True,
    ),
    Mistake(
        "no_interval",
        ("poke_interval: should be a timedelta, or a number of seconds such as 60, from 1",),
        tasks="""FsmFormSensor(task_id="wait", poke_interval=0)""",
        breaks_import=True,
    ),
    Mistake(
        "unknown_webhook_object",
        ("webhook.object", "'jobs'"),
        tasks="""FsmRegisterWebhookOperator(task_id="register", object="job", event_types="job.created")""",
        breaks_import=True,
    ),
    # What fails a task.
    Mistake(
        "connection_of_another_type",
        ("connection 'connection_of_another_type': is of type 'http', not 'fsm'",),
        tasks="""
FsmCreateJobOperator(
    task_id="create_job", fsm_conn_id="connection_of_another_type", property_id=7, job={"notes": "1"}
)
""",
        connection={"conn_type": "http"},
    ),
    Mistake(
        "typo_in_conn_id",
        ("fsm_defualt", "isn't defined"),
        tasks="""
FsmCreateJobOperator(task_id="create_job", fsm_conn_id="fsm_defualt", property_id=7, job={"notes": "1"})
""",
    ),
    Mistake(
        "ledger_not_defined",
        ("state_conn_id", "fsm_ledgr", "isn't defined"),
        tasks="""
FsmCreateJobOperator(task_id="create", fsm_conn_id="ledger_not_defined", property_id=7, job={"notes": "1"})
""",
        connection={"extra": {"state_conn_id": "fsm_ledgr"}},
    ),
    Mistake(
        "ledger_in_a_relative_path",
        ("state_conn_id", "'relative_ledger': its host should be the absolute path of a file"),
        tasks="""
FsmCreateJobOperator(
    task_id="create_job", fsm_conn_id="ledger_in_a_relative_path", property_id=7, job={"notes": "1"}
)
""",
        connection={"extra": {"state_conn_id": "relative_ledger"}},
        further={"relative_ledger": {"conn_type": "sqlite", "host": "fsm_ledger.db"}},
    ),
    Mistake(
        "property_that_is_none",
        ("property_id: is the text 'None': the template that it comes from found nothing",),
        tasks="""
FsmCreateJobOperator(
    task_id="create_job", property_id="{{ ti.xcom_pull(task_ids='no_such_task') }}", job={"notes": "2"}
)
""",
    ),
    Mistake(
        "property_that_does_not_exist",
        ("/properties/8/jobs", "HTTP 404", "check the identifier in the path"),
        tasks="""FsmCreateJobOperator(task_id="create_job", property_id=8, job={"notes": "3"})""",
    ),
    Mistake(
        "jobs_without_tojson",
        ("jobs: is text, but no JSON: end its template with | tojson",),
        tasks="""
@task
def read_rows():
    return [{"property_id": 7, "job": {"notes": "5"}}]

read_rows() >> FsmCreateJobsOperator(
    task_id="create_jobs", jobs="{{ ti.xcom_pull(task_ids='read_rows') }}"
)
""",
    ),
    Mistake(
        "record_in_place_of_id",
        ("job_id: is a complete record or list as text", "['id']"),
        tasks="""
create_job = FsmCreateJobOperator(task_id="create_job", property_id=7, job={"notes": "7"})
FsmFormSensor(task_id="wait", job_id="{{ ti.xcom_pull(task_ids='create_job') }}") << create_job
""",
    ),
    Mistake(
        "form_under_another_name",
        ("Sensor has timed out", "Gas Safety Recrod", "1 other form since then: Gas Safety Record"),
        tasks="""
create_job = FsmCreateJobOperator(task_id="create_job", property_id=7, job={"notes": "8"})
wait = FsmFormSensor(
    task_id="wait",
    job_id="{{ ti.xcom_pull(task_ids='create_job')['id'] }}",
    form_names=["Gas Safety Recrod"],
    deferrable=True,
    poke_interval=5,
    timeout=timedelta(seconds=25),
)
create_job >> wait
""",
    ),
    Mistake(
        "output_of_a_mapped_task",
        ("forms[0]: is a list", "map index of a mapped task", ".expand(forms=...)"),
        tasks="""
jobs = FsmCreateJobOperator.partial(task_id="create_job", property_id=7).expand(
    job=[{"notes": "9"}, {"notes": "10"}]
)
job_ids = jobs.output.map(lambda job: job["id"])
wait = FsmFormSensor.partial(task_id="wait", poke_interval=5).expand(job_id=job_ids)
FsmFormPdfsToObjectStorageOperator(
    task_id="store_pdfs", forms=wait.output, destination="/data/gas_safety_records"
)
""",
    ),
    Mistake(
        "webhook_without_receiver",
        ("target_url: is missing, and no Variable fsm_webhooks has a base_url and an endpoint",),
        tasks="""FsmRegisterWebhookOperator(task_id="register", object="jobs", event_types="jobs.created")""",
    ),
]
"""No row creates a job that another one could be taken for: each has other notes."""
