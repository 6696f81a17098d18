from datetime import datetime

from airflow.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.operators.jobs import FsmCreateJobOperator


@dag(
    schedule=completed_forms("warning_notices", form_names="Warning Notice"),
    start_date=datetime(2026, 1, 1),
)
def remedial_work():
    @task
    def jobs_for_notices(triggering_asset_events):
        return [
            {
                "property_id": form["propertyID"],
                "job": {"customerReference": f"notice {form['id']}"},
            }
            for form in forms_from_events(triggering_asset_events)
        ]

    FsmCreateJobOperator.partial(task_id="create_job").expand_kwargs(jobs_for_notices())


remedial_work()
