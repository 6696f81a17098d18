"""A DAG that completed forms start. Needs Airflow 3.0."""

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events


@dag(
    schedule=completed_forms("matrix_forms", poll_interval=1, form_names="Watched Record"),
    catchup=False,
)
def watched():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


watched()
