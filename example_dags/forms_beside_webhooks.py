"""Poll for completed forms, for which the service has no webhooks, beside ``webhook_bootstrap``.

Starts paused. Needs Airflow 3.0.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events

# The asset of gas_safety_forms, with the same arguments: the two files share its watcher, and its
# requests.
FORMS = completed_forms(
    "gas_safety_forms",
    poll_interval=float(os.environ.get("FSM_POLL_INTERVAL", "60")),
    form_names=["Gas Safety Record", "Warning Notice"],
)


@dag(
    schedule=[FORMS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    tags=["fsm", "example"],
    default_args={"retries": 2},
)
def forms_beside_webhooks():
    @task
    def forms(triggering_asset_events=None) -> list[dict]:
        """Return the completed forms; a manual run has none."""
        completed = forms_from_events(triggering_asset_events or {})
        for form in completed:
            print(f"{form['formName']} {form['id']} of job {form['jobID']}")
        return completed

    forms()


forms_beside_webhooks()
