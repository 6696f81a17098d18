from datetime import timedelta

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator

RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}


@dag(
    schedule=completed_forms("certificates", poll_interval=60, form_names=["Gas Safety Record"]),
    is_paused_upon_creation=True,
    default_args=RETRIES,
)
def find_certificates():
    @task
    def runs(triggering_asset_events=None):
        runs = []
        for form in forms_from_events(triggering_asset_events or {}):
            run_id = f"form-{form['id']}-{form['lastUpdatedOnDateTime']}"
            runs.append({"trigger_run_id": run_id, "conf": {"form": form}})
        return runs

    TriggerDagRunOperator.partial(
        task_id="start",
        trigger_dag_id="file_certificate",
        skip_when_already_exists=True,
        logical_date=None,  # several forms may come at once
    ).expand_kwargs(runs())


find_certificates()


@dag(
    schedule=None,
    is_paused_upon_creation=True,
    default_args=RETRIES,
    params={"form": Param({}, type="object", title="Reference of the form")},
)
def file_certificate():
    @task
    def form(params):
        return [params["form"]]

    FsmFormPdfsToObjectStorageOperator(
        task_id="store_pdf", forms=form(), destination="/data/certificates"
    )


file_certificate()
