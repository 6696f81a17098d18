"""Register a webhook for new jobs, and start a DAG with a reference to the job of each delivery.

``webhook_bootstrap`` registers the webhook once, however often it runs. Before that, configure the
receiver in Airflow's API server: see ``docs/webhooks.md``. Treat a delivery as a hint, and read
what matters from the service. The service marks registration as in development, and sends no
webhooks for completed forms: ``gas_safety_forms`` polls for those. Needs Airflow 3.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Asset, dag, task

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator

JOBS = Asset("fsm://fsm_default/jobs")
RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=10)}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["fsm", "example"],
    default_args=RETRIES,
)
def webhook_bootstrap():
    # [START howto_operator_register_webhook]
    # The default target_url is the receiver's own, which contains a secret token.
    FsmRegisterWebhookOperator(task_id="register", object="jobs", event_types=["jobs.created"])
    # [END howto_operator_register_webhook]


@dag(
    schedule=[JOBS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["fsm", "example"],
    default_args=RETRIES,
)
def jobs_from_webhooks():
    # [START howto_asset_webhook_deliveries]
    @task
    def references(triggering_asset_events=None) -> list[dict]:
        """Return references to the jobs of the deliveries; a run may have several deliveries."""
        jobs = {}
        for events in triggering_asset_events.values():
            for event in events:
                # An event that somebody made by hand has no delivery.
                if "delivery" in event.extra:
                    job = {"type": event.extra.get("type"), "jobID": event.extra.get("id")}
                    jobs[event.extra["delivery"]] = job
        for job in jobs.values():
            print(f"{job['type']}: job {job['jobID']}")
        return list(jobs.values())

    # [END howto_asset_webhook_deliveries]

    references()


webhook_bootstrap()
jobs_from_webhooks()
