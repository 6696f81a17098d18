from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.forms import FsmListFormsOperator


@dag(schedule=None)
def forms_of_two_accounts():
    FsmListFormsOperator.partial(task_id="list_forms", created_since="2026-01-01T00:00:00Z").expand(
        fsm_conn_id=["fsm_north", "fsm_south"]
    )


forms_of_two_accounts()
