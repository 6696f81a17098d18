from datetime import UTC, datetime

from airflow.providers.common.compat.sdk import dag

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator


@dag(schedule="@monthly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def monthly_export():
    # The month in which it runs: a listing shows what is there now, whenever the run is cleared.
    month = "{{ macros.datetime.now().strftime('%Y-%m') }}"
    FsmFormsToObjectStorageOperator(
        task_id="export", destination=f"/data/all_forms/month={month}/forms.parquet"
    )


monthly_export()
