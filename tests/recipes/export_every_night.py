from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def nightly_export():
    @task(multiple_outputs=True)
    def choose_day(dag_run, data_interval_end=None):
        day = (data_interval_end or dag_run.run_after).date()
        return {"day": str(day), "since": str(day - timedelta(days=7))}  # phones sync late

    day = "{{ ti.xcom_pull(task_ids='choose_day')['day'] }}"
    FsmFormsToObjectStorageOperator(
        task_id="export",
        updated_since=choose_day()["since"],
        destination=f"/data/forms/window_start={day}/forms.parquet",
    )


nightly_export()
