"""Turn each warning notice into one follow-up job at its property.

Every hour the DAG lists the forms that were updated since its last run that *succeeded*, less a
look-back for phones that sync late, and creates a job for each warning notice among them. The job's
key is ``REM-FORM-<id of the form>``. The setting ``state_conn_id`` of the connection
``fsm_default`` names a connection to a SQL database, such as SQLite, which records each key that is
sent: a form that is listed again creates nothing, even if all runs are deleted.

The time of the last run is in an Airflow Variable named like the DAG; the last task writes it. A
pause or a failed run loses no notice; a notice that reaches the service later than the look-back is
lost. If a job is rejected or uncertain, the others are created and the run fails. So does each run
after it, as it lists the same forms again, until a person has corrected what the service rejects;
or has looked for the uncertain key in the service, and runs ``python -m fsm_provider ledger settle
REM-FORM-5001`` with ``--job-id 4711`` or ``--not-created``, and ``--why "looked in the app"``.

A listing contains the name of a form, not its answers: the job's notes say where to read them. The
DAG starts paused, because it creates jobs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Param, Variable, dag, task

from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator

VARIABLE = "remedial_from_warning_notice"


def job_for(form):
    """Return the follow-up job of a warning notice, at the same property."""
    reference = f"REM-FORM-{form['id']}"
    notes = (
        f"Put right what {form['formName']} {form['id']} of {form['createdOnDateTime']} found."
        f" What that was is in the form itself, at job {form['jobID']}."
    )
    return {
        "key": reference,
        "property_id": form["propertyID"],
        "job": {"customerReference": reference, "notes": notes, "priority": "Important"},
    }


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "form_name": Param(
            "Warning Notice",
            type="string",
            minLength=1,
            title="Name of the form",
        ),
        "look_back_hours": Param(
            168,
            type="integer",
            minimum=1,
            title="Hours that a phone may sync late",
        ),
    },
)
def remedial_from_warning_notice():
    @task(multiple_outputs=True)
    def begin(params):
        """Take the time before anything is listed; return it, and the time to list from."""
        now = datetime.now(UTC).isoformat()
        last_run = Variable.get(VARIABLE, "")
        if not last_run:
            # The first run of all. If it fails, the next run lists from here too.
            Variable.set(VARIABLE, now)
            last_run = now
        since = datetime.fromisoformat(last_run) - timedelta(hours=params["look_back_hours"])
        return {"now": now, "since": since.isoformat()}

    @task
    def choose_warning_notices(forms, params):
        """Return the follow-up job of each warning notice."""
        jobs = []
        for form in forms:
            is_notice = form["formName"] == params["form_name"]
            if is_notice:
                jobs.append(job_for(form))
        return jobs

    @task
    def commit(now):
        """Save the time of this run, now that all is done."""
        last_run = Variable.get(VARIABLE, now)
        if datetime.fromisoformat(last_run) > datetime.fromisoformat(now):
            # This run was cleared, and a later one has saved its time: it is not moved back.
            return
        Variable.set(VARIABLE, now)

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    jobs = choose_warning_notices(list_forms.output)
    # Once per key: a notice that is listed again, by whichever run, creates no second job.
    create_jobs = FsmCreateJobsOperator(task_id="create_jobs", jobs=jobs, once_per="key")
    create_jobs >> commit(begun["now"])


remedial_from_warning_notice()
