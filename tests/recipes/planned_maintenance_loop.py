from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.api import jobs_from_rows
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator, outcomes_as_text

# planned_visits (reference, property_id, notes, due, job_id, form_id, done_on)
DUE = """
    SELECT reference, property_id, notes FROM planned_visits
    WHERE due <= date('now') AND done_on IS NULL
"""
HAS_JOB = "UPDATE planned_visits SET job_id = ? WHERE reference = ?"
IS_DONE = """
    UPDATE planned_visits SET form_id = ?, done_on = ? WHERE job_id = ? AND done_on IS NULL
"""
COLUMNS = ("reference", "property_id", "notes")


def plan():
    from airflow.providers.sqlite.hooks.sqlite import SqliteHook  # or that of your database

    return SqliteHook("planning")


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def planned_maintenance_loop():
    @task
    def read_due():
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in plan().get_records(DUE)]
        fields = {"customerReference": "reference", "notes": "notes"}
        return jobs_from_rows(rows, key="reference", property_id="property_id", map=fields)

    # Jobs that exist are written down, whatever became of the others.
    @task(trigger_rule="all_done")
    def write_jobs(outcomes):
        print(outcomes_as_text(outcomes))
        for outcome in outcomes or ():
            if outcome["jobID"]:
                plan().run(HAS_JOB, parameters=(outcome["jobID"], outcome["key"]))

    @task
    def a_month_ago():
        return (datetime.now(UTC) - timedelta(days=30)).isoformat()

    @task
    def write_forms(forms):
        for form in forms:
            if form["formName"] == "Job Sign-off":
                done_on = form["createdOnDateTime"]
                plan().run(IS_DONE, parameters=(form["id"], done_on, form["jobID"]))

    create = FsmCreateJobsOperator(task_id="create", jobs=read_due(), once_per="key", max_jobs=200)
    forms = FsmListFormsOperator(task_id="forms", updated_since=a_month_ago())
    write_jobs(create.output) >> write_forms(forms.output)


planned_maintenance_loop()
