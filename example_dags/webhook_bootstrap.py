"""The service tells of new jobs by webhook, and each delivery starts a DAG with a reference to its job.

``webhook_bootstrap`` registers the webhook, once, however often it runs. Before that, configure the receiver
in Airflow's API server: see ``docs/webhooks.md``. What a delivery says is a hint: read from the service what
matters. The registration is marked as in development, and completed forms are not among what it can tell of:
``forms_beside_webhooks`` goes on polling for those. It starts paused, and needs Airflow 3.3.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.providers.common.compat.sdk import Asset, dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator

JOBS = Asset("fsm://fsm_default/jobs")
# The asset of gas_safety_forms, with the same arguments: the two files share its watcher, and its requests.
FORMS = completed_forms(
    "gas_safety_forms",
    poll_interval=float(os.environ.get("FSM_POLL_INTERVAL", "60")),
    form_names=["Gas Safety Record", "Warning Notice"],
)
RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=10)}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["fsm", "example"],
    default_args=RETRIES,
)
def webhook_bootstrap():
    # [START howto_operator_register_webhook]
    # No target_url: the receiver's own address, with a token in it that is shown to nobody.
    FsmRegisterWebhookOperator(task_id="register", object="jobs", event_types=["jobs.created"])
    # [END howto_operator_register_webhook]


@dag(
    schedule=[JOBS],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["fsm", "example"],
    default_args=RETRIES,
)
def jobs_from_webhooks():
    # [START howto_asset_webhook_deliveries]
    @task
    def references(triggering_asset_events=None) -> list[dict]:
        """Say which jobs the deliveries were about; a run may stand for several deliveries."""
        events = [event for events in triggering_asset_events.values() for event in events]
        found = {
            event.extra["delivery"]: {"type": event.extra.get("type"), "jobID": event.extra.get("id")}
            for event in events
            if "delivery" in event.extra
        }
        for reference in found.values():
            print(f"{reference['type']}: job {reference['jobID']}")
        return list(found.values())

    # [END howto_asset_webhook_deliveries]

    references()


@dag(
    schedule=[FORMS],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    tags=["fsm", "example"],
    default_args=RETRIES,
)
def forms_beside_webhooks():
    @task
    def forms(triggering_asset_events=None) -> list[dict]:
        """Say which forms were completed; a run by hand has none."""
        found = forms_from_events(triggering_asset_events or {})
        for form in found:
            print(f"{form['formName']} {form['id']} of job {form['jobID']}")
        return found

    forms()


webhook_bootstrap()
jobs_from_webhooks()
forms_beside_webhooks()
