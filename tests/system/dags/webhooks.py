"""Webhook registrations, whose secrets go to an Airflow Variable each."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator


@dag(schedule=None)
def webhook_registration():
    FsmRegisterWebhookOperator(
        task_id="register",
        object="jobs",
        event_types=["jobs.created", "jobs.closed"],
        target_url="https://hooks.example.com/fsm",
    )


@dag(schedule=None, max_active_runs=8, default_args={"retries": 1, "retry_delay": timedelta(seconds=1)})
def webhook_registered_by_many():
    """Three tasks of each run, and several runs at once, all want the same webhook; then one fails once."""

    @task
    def fail_the_first_time(**context):
        if context["ti"].try_number == 1:
            raise RuntimeError("as asked")

    registered = [
        FsmRegisterWebhookOperator(
            task_id=f"register_{number}",
            fsm_conn_id="fsm_with_ledger",
            object="assets",
            event_types=["assets.created"],
            target_url="https://hooks.example.com/{{ params.target }}",
            params={"target": "many"},
        )
        for number in range(3)
    ]
    registered >> fail_the_first_time()


webhook_registration()
webhook_registered_by_many()
