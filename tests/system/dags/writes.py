"""Job creations whose outcome the service leaves in the dark; Airflow would retry each twice."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.jobs import FsmCreateJobOperator

PROPERTIES = {"read_timeout": 901, "reset_after_sending": 902, "server_error": 903, "unreadable": 904}


@dag(schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)})
def uncertain_writes():
    for task_id, property_id in PROPERTIES.items():
        FsmCreateJobOperator(
            task_id=task_id,
            fsm_conn_id="fsm_short_timeout",
            property_id=property_id,
            job={"customerReference": f"PO-{task_id}"},
        )


uncertain_writes()
