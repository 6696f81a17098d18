"""Start a run with completed forms of any job, and send each form where its name says.

An asset stands for the forms, and its watcher polls for them: one listing every
``FSM_POLL_INTERVAL`` seconds (an environment variable, 60 by default), usually of one page, however
many jobs there are. A run gets references: the listing contains the name of a form, not its
answers. A form that changes comes again, with another ``lastUpdatedOnDateTime``. A form that came
just as a triggerer died may come twice.

Starts paused: forms that were completed before it is first unpaused are history, and start nothing.
While it is paused or at ``max_active_runs``, Airflow hands an event to the run of the next event.
If you cannot accept that, list forms as ``forms_since_watermark`` does. Needs Airflow 3.0.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events

POLL_INTERVAL = float(os.environ.get("FSM_POLL_INTERVAL", "60"))
ROUTES = {"Gas Safety Record": "file_records", "Warning Notice": "warn_office"}
"""The task for the forms of each name."""


def task_for(form: dict) -> str:
    """Return the id of the task for a form."""
    # The asset takes a name with spaces around it for the same name.
    return ROUTES[form["formName"].strip()]


def routes_for(forms: list[dict]) -> list[str]:
    """Return the tasks that have forms."""
    return sorted({task_for(form) for form in forms})


def forms_for(task_id: str, forms: list[dict]) -> list[dict]:
    """Return the forms for a task."""
    return [form for form in forms if task_for(form) == task_id]


# [START howto_asset_completed_forms]
@dag(
    schedule=completed_forms(
        "gas_safety_forms", poll_interval=POLL_INTERVAL, form_names=list(ROUTES)
    ),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
)
def gas_safety_forms():
    @task
    def parse_forms(triggering_asset_events=None):
        """Return the forms of all events of this run, each version once; a manual run has none."""
        return forms_from_events(triggering_asset_events or {})

    # [END howto_asset_completed_forms]

    # Airflow skips the tasks that a branch does not name.
    @task.branch
    def route(forms):
        """Return the ids of the tasks that have forms."""
        return routes_for(forms)

    @task
    def file_records(forms):
        """Deliver a landlord's records; here they are only printed."""
        filed = []
        for record in forms_for("file_records", forms):
            name = f"Record {record['id']} of property {record['propertyID']}"
            print(f"{name} goes to the landlord's file")
            filed.append(record["id"])
        return filed

    @task
    def warn_office(forms):
        """Notify the office; remedial_from_answers creates follow-up jobs."""
        reported = []
        for notice in forms_for("warn_office", forms):
            name = f"Warning notice {notice['id']} on property {notice['propertyID']}"
            print(f"{name}: call the customer")
            reported.append(notice["id"])
        return reported

    forms = parse_forms()
    route(forms) >> [file_records(forms), warn_office(forms)]


gas_safety_forms()
