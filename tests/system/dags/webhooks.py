"""Webhook registrations, whose secrets go to an Airflow Variable each."""

from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator


@dag(schedule=None)
def webhook_registration():
    FsmRegisterWebhookOperator(
        task_id="register",
        object="jobs",
        event_types=["jobs.created", "jobs.closed"],
        target_url="https://hooks.example.com/fsm",
    )


webhook_registration()
