"""Completed forms start a run, whichever job they belong to, and go where their name sends them.

An asset stands for the forms, and its watcher looks for them: one listing each ``FSM_POLL_INTERVAL``
seconds (an environment variable, 60 by default), mostly of one page, whatever the number of jobs. A run is
given references: the listing carries the name of a form, not its answers. A form that is changed comes
again, with another ``lastUpdatedOnDateTime``; and one that came just as a triggerer died may come twice.

Starts paused: what was completed before it is first unpaused is history, and starts nothing. While it is
paused or has ``max_active_runs``, Airflow hands an event to the run of the next one. Where that may not be,
read as ``forms_since_watermark`` does. Needs Airflow 3.3.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events

POLL_INTERVAL = float(os.environ.get("FSM_POLL_INTERVAL", "60"))
ROUTES = {"Gas Safety Record": "file_records", "Warning Notice": "warn_office"}
"""Which task takes the forms of a name."""


def routes_of(forms: list[dict]) -> list[str]:
    """Name the tasks that have something to do."""
    return sorted({ROUTES[form["formName"]] for form in forms})


def forms_for(task_id: str, forms: list[dict]) -> list[dict]:
    """Give the forms that a task takes."""
    return [form for form in forms if ROUTES[form["formName"]] == task_id]


# [START howto_asset_completed_forms]
@dag(
    schedule=completed_forms("gas_safety_forms", poll_interval=POLL_INTERVAL, form_names=list(ROUTES)),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
)
def gas_safety_forms():
    @task
    def read_forms(triggering_asset_events=None):
        """Give the forms of all events of this run, each version once; a run by hand has none."""
        return forms_from_events(triggering_asset_events or {})

    # [END howto_asset_completed_forms]

    @task.branch
    def route(forms):
        return routes_of(forms)

    @task
    def file_records(forms):
        """Hand a landlord's records over; here they are only told of."""
        records = forms_for("file_records", forms)
        for form in records:
            print(f"Record {form['id']} of property {form['propertyID']} goes to the landlord's file")
        return [form["id"] for form in records]

    @task
    def warn_office(forms):
        """Tell the office; what follows from a notice is in remedial_from_warning_notice."""
        notices = forms_for("warn_office", forms)
        for form in notices:
            print(f"Warning notice {form['id']} on property {form['propertyID']}: call the customer")
        return [form["id"] for form in notices]

    forms = read_forms()
    route(forms) >> [file_records(forms), warn_office(forms)]


gas_safety_forms()
