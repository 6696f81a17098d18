"""Make a visit of each answer that asks for one: once, and with a deadline.

``remedial_from_answers`` reads the PDFs of the forms that were updated in the last days, every
hour. For each answer in ``FINDINGS`` it triggers one run of ``visit_in_24_hours`` or
``visit_in_28_days``. The id of the run names the form and the question: one that is there already
is left alone, so the grid of these DAGs is the list of findings, and each can be cleared by itself.

A visit is a job whose notes quote the answer. The run ends when its form "Job Sign-off" is there.
If that is not so at the deadline, Airflow mails the office (from Airflow 3.1 on; the provider
``smtp`` and its connection ``smtp_default`` are needed). The deadline counts from the start of the
run: phones may sync late, so the notes name the time of the form. The setting ``state_conn_id`` of
the connection ``fsm_default`` names a connection to a SQL database, which records the key of each
job: even if all runs are deleted, none is created again.

A form that the reader is not sure of fails the run, after the visits of the others: a person has to
read it. The hours and days are examples: agree on yours. Needs ``pdfplumber`` and
``apache-airflow-providers-standard``. All three DAGs start paused, as they create jobs.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator

# answer_reader.py is beside this file, in whichever folder below Airflow's folder of DAGs.
sys.path.append(str(Path(__file__).parent))
from answer_reader import QUESTIONS, Answer, UncertainError, read_answers


class Finding(NamedTuple):
    """An answer that asks for a visit.

    :param code: names the question in the key of the job; never change it.
    :param visit: the DAG whose runs are the visits.
    """

    question: str
    answer: str
    code: str
    visit: str


VISITS = {
    "visit_in_24_hours": timedelta(hours=24),
    "visit_in_28_days": timedelta(days=28),
}
"""The DAG of the visits with each deadline."""
FINDINGS = [
    Finding("Is the appliance safe to use?", "Unsafe", "SAFE", "visit_in_24_hours"),
    Finding(
        "Is the flue clear, and does it end in a safe place?", "No", "FLUE", "visit_in_28_days"
    ),
    Finding("Is a carbon monoxide alarm fitted?", "No", "ALARM", "visit_in_28_days"),
]
SAID = "Defects that were found"
"""The question whose answer is quoted beside each finding."""


def visits_for(form: dict, answers: list[Answer]) -> list[dict]:
    """Return the run of a visit for each finding in a form, as TriggerDagRunOperator takes it."""
    by_question = {answer.question: answer.answer for answer in answers}
    visits = []
    for finding in FINDINGS:
        answer = by_question.get(finding.question)
        if answer != finding.answer:
            continue
        key = f"REM-{form['id']}-{finding.code}"
        notes = (
            f"{form['formName']} {form['id']} of {form['createdOnDateTime']}, job {form['jobID']}:"
            f' "{finding.question} {answer}". {SAID}: "{by_question.get(SAID, "not said")}".'
        )
        conf = {"key": key, "property_id": form["propertyID"], "notes": notes}
        visits.append({"trigger_dag_id": finding.visit, "trigger_run_id": key, "conf": conf})
    return visits


def with_deadline(interval: timedelta) -> dict[str, Any]:
    """Return the argument of a DAG that mails the office if a run takes longer; none before 3.1."""
    try:
        from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
    except ImportError:
        return {}
    # Here dag_run is what Airflow's REST API returns, so its id is called dag_run_id.
    mail = AsyncCallback(
        "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
        kwargs={
            "to": "office@example.com",
            "subject": "{{ dag_run.dag_run_id }}: the visit is not signed off",
            "html_content": "{{ dag_run.conf.notes | e }}",
        },
    )
    alert = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=interval,
        callback=mail,
    )
    return {"deadline": alert}


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "folder": Param(
            str(Path(__file__).parent / "data" / "form_pdfs"),
            type="string",
            minLength=1,
            title="Folder of the PDFs",
        ),
        "days": Param(8, type="integer", minimum=1, title="Days to go back: phones sync late"),
    },
)
def remedial_from_answers():
    @task
    def begin(params):
        """Return the time from which the run lists."""
        since = datetime.now(UTC) - timedelta(days=params["days"])
        return since.isoformat()

    @task
    def choose_forms(listed):
        """Return the forms whose questions are known."""
        return [form for form in listed if form["formName"] in QUESTIONS]

    @task(multiple_outputs=True)
    def read(forms, stored):
        """Return the visits, and which forms a person has to read."""
        visits = []
        uncertain = []
        # The operator returns one path for each form, in their order.
        for form, path in zip(forms, stored["paths"], strict=True):
            pdf = ObjectStoragePath(path).read_bytes()
            try:
                _, answers = read_answers(pdf, form["formName"])
            except UncertainError as error:
                uncertain.append(f"form {form['id']} of job {form['jobID']}, {path}: {error}")
                continue
            visits += visits_for(form, answers)
        return {"visits": visits, "uncertain": uncertain}

    @task
    def choose_visits(visits):
        """Return the visits by themselves, as a task that is mapped needs them."""
        return visits

    # What could be read has its visits, whatever else there is.
    @task(trigger_rule="none_failed")
    def check(uncertain):
        """Fail if a person has to read a form."""
        if uncertain:
            raise AirflowFailException("\n".join(["a person has to read:", *uncertain]))

    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begin())
    forms = choose_forms(list_forms.output)
    store_pdfs = FsmFormPdfsToObjectStorageOperator(
        task_id="store_pdfs",
        forms=forms,
        destination="{{ params.folder }}",
    )
    found = read(forms, store_pdfs.output)
    trigger_visits = TriggerDagRunOperator.partial(
        task_id="trigger_visits",
        skip_when_already_exists=True,
        logical_date=None,  # two visits may begin at the same time
    ).expand_kwargs(choose_visits(found["visits"]))
    trigger_visits >> check(found["uncertain"])


def make_visit_dag(dag_id: str, interval: timedelta) -> None:
    """Make the DAG whose runs are the visits with a deadline."""

    @dag(
        dag_id=dag_id,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=True,
        default_args={"retries": 2},
        tags=["fsm", "example"],
        params={
            "key": Param("REM-0-SAFE", type="string", minLength=1, title="Key"),
            "property_id": Param("7", type=["string", "integer"], title="Property"),
            "notes": Param("", type="string", title="Notes for the engineer"),
        },
        **with_deadline(interval),
    )
    def visit():
        create_job = FsmCreateJobOperator(
            task_id="create_job",
            property_id="{{ params.property_id }}",
            key="{{ params.key }}",
            once_per="key",
            job={
                "customerReference": "{{ params.key }}",
                "notes": "{{ params.notes }}",
                "priority": "Important",
            },
        )
        FsmFormSensor(
            task_id="wait_for_sign_off",
            job=create_job.output,
            form_names=["Job Sign-off"],
            deferrable=True,
            timeout=timedelta(days=90),
        )

    visit()


remedial_from_answers()
for visit_dag_id, deadline in VISITS.items():
    make_visit_dag(visit_dag_id, deadline)
