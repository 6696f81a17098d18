"""Turn each warning notice into one follow-up job at its property.

Every hour the first DAG lists the forms that were updated since its last run that *succeeded*, less a
look-back for phones that sync late. For each warning notice it starts a run of the second DAG, named
``REM-FORM-<id of the form>``. Airflow allows a run id once: a form that is listed again starts nothing. The
second DAG creates the job. Its ledger keeps that to one job in its run, even if the task is retried or
cleared. The watermark is in an Airflow Variable named like the DAG, which the last task writes. A pause or a
failed run loses no notice; a notice that reaches the service later than the look-back is lost.

Keep the runs of the second DAG: they are the record of its jobs. If a run is deleted, by hand or by
``airflow db clean``, and its form is updated afterwards, that form creates a second job.

A listing contains the name of a form, not its answers: the job's notes say where to read them. The first DAG
starts paused, because it creates jobs. Unpause the second one too, or its runs wait. On Airflow 2 it needs
``apache-airflow-providers-standard``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from fsm_provider import watermark
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator

VARIABLE = "remedial_from_warning_notice"


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "form_name": Param("Warning Notice", type="string", minLength=1, title="Name of the form"),
        "look_back_hours": Param(168, type="integer", minimum=1, title="Hours that a phone may sync late"),
    },
)
def remedial_from_warning_notice():
    @task(multiple_outputs=True)
    def begin(params):
        return watermark.begin(VARIABLE, timedelta(hours=params["look_back_hours"]))

    @task
    def choose_warning_notices(forms, params):
        """Make the arguments of a run of the second DAG for each warning notice."""
        return [
            {"trigger_run_id": f"REM-FORM-{form['id']}", "conf": {"form": form}}
            for form in forms
            if form["formName"] == params["form_name"]
        ]

    # Starting is skipped if there is no notice, or each has its run already.
    @task(trigger_rule="none_failed")
    def commit(now):
        watermark.commit(VARIABLE, now)

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    # Without a logical date: two runs cannot share one.
    start_remedial_job = TriggerDagRunOperator.partial(
        task_id="start_remedial_job",
        trigger_dag_id="remedial_job",
        logical_date=None,
        skip_when_already_exists=True,
    ).expand_kwargs(choose_warning_notices(list_forms.output))
    start_remedial_job >> commit(begun["now"])


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={"form": Param(None, type="object", title="The warning notice, as the listing gives it")},
)
def remedial_job():
    FsmCreateJobOperator(
        task_id="create_job",
        property_id="{{ params.form.propertyID }}",
        key="REM-FORM-{{ params.form.id }}",
        job={
            "customerReference": "REM-FORM-{{ params.form.id }}",
            "notes": "Put right what {{ params.form.formName }} {{ params.form.id }} of"
            " {{ params.form.createdOnDateTime }} found. What that was is in the form itself,"
            " at job {{ params.form.jobID }}.",
            "priority": "Important",
        },
    )


remedial_from_warning_notice()
remedial_job()
