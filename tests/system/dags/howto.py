"""What the pages under ``docs`` show of the operators that no example DAG has."""

from __future__ import annotations

import csv
from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.api import jobs_from_rows
from fsm_provider.operators.assets import FsmListAssetDynamicFieldsOperator
from fsm_provider.operators.generic import FsmListOperator, FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator, job_id_or_skip
from fsm_provider.retry_policy import FsmRetryPolicy
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.sensors.records import FsmRecordSensor
from fsm_provider.transfers.assets import FsmAssetDynamicFieldsToObjectStorageOperator
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator


@dag(schedule=None, params={"folder": ""}, default_args={"fsm_conn_id": "fsm_howto"})
def howto():
    # [START howto_rows]
    @task
    def planned_jobs():
        lines = ["reference,property,amount", "PM-1,7,99.50", "PM-2,8.0,"]
        rows = csv.DictReader(lines)
        fields = {"customerReference": "reference", "quotedAmount": "amount"}
        return jobs_from_rows(rows, key="reference", property_id="property", map=fields)

    # [END howto_rows]

    # [START howto_bulk]
    create_jobs = FsmCreateJobsOperator(
        task_id="create_jobs",
        jobs=planned_jobs(),
        max_concurrency=4,
        max_jobs=200,
    )
    # [END howto_bulk]

    # [START howto_mapped_sensors]
    FsmFormSensor.partial(
        task_id="wait_for_each",
        deferrable=True,
        poke_interval=15,
        timeout=timedelta(days=14),
        map_index_template="job {{ task.job_id }}",
    ).expand(job_id=create_jobs.output.map(job_id_or_skip))
    # [END howto_mapped_sensors]

    # [START howto_partial]
    create_what_can_be = FsmCreateJobsOperator(
        task_id="create_what_can_be",
        jobs=[
            {"property_id": 7, "job": {"customerReference": "PM-3"}, "key": "PM-3"},
            {"property_id": 999, "job": {"customerReference": "PM-4"}, "key": "PM-4"},
        ],
        fail_on="none",
    )

    @task(map_index_template="job {{ task.op_kwargs['job_id'] }}")
    def tell_the_tenant(job_id):
        return f"job {job_id} is planned"

    @task(trigger_rule="none_failed")
    def report(outcomes):
        without_job = [outcome for outcome in outcomes if outcome["jobID"] is None]
        return [f"{outcome['key']} {outcome['outcome']}" for outcome in without_job]

    told = tell_the_tenant.expand(job_id=create_what_can_be.output.map(job_id_or_skip))
    told >> report(create_what_can_be.output)
    # [END howto_partial]

    # [START howto_retry_policy]
    FsmCreateJobOperator(
        task_id="create_job",
        property_id=7,
        job={"customerReference": "PO-4712"},
        retries=3,
        retry_policy=FsmRetryPolicy(max_delay=timedelta(hours=2)),
    )
    # [END howto_retry_policy]

    # [START howto_hook]
    @task
    def count_warning_notices():
        from fsm_provider.hooks.fsm import FsmHook

        count = 0
        for form in FsmHook().list_forms(property_id=7, created_since="2026-01-01T00:00:00Z"):
            if form.form_name == "Warning Notice":
                count += 1
        return count

    # [END howto_hook]
    count_warning_notices()

    # [START howto_operator_list_asset_fields]
    FsmListAssetDynamicFieldsOperator(task_id="asset_fields")
    # [END howto_operator_list_asset_fields]

    # [START howto_transfer_forms]
    FsmFormsToObjectStorageOperator(
        task_id="export_forms",
        created_since="2026-01-01T00:00:00Z",
        created_before="2027-01-01T00:00:00Z",
        destination="{{ params.folder }}/forms/2026.csv",
    )
    # [END howto_transfer_forms]

    # [START howto_transfer_forms_mapped]
    FsmFormsToObjectStorageOperator.partial(
        task_id="export_properties",
        created_since="2026-01-01T00:00:00Z",
        destination="{{ params.folder }}/forms/property={{ task.property_id }}/forms.parquet",
        max_active_tis_per_dagrun=2,
    ).expand(property_id=[7, 8])
    # [END howto_transfer_forms_mapped]

    # [START howto_transfer_asset_fields]
    FsmAssetDynamicFieldsToObjectStorageOperator(
        task_id="export_asset_fields", destination="{{ params.folder }}/asset_fields.jsonl"
    )
    # [END howto_transfer_asset_fields]

    # [START howto_operator_list]
    FsmListOperator(task_id="users", path="/users", query_params={"active": "true"})
    # [END howto_operator_list]

    # [START howto_operator_request]
    FsmRequestOperator(
        task_id="put_on_hold", method="POST", path="/jobs/4711/hold", json={"onHoldReasonID": 3}
    )
    # [END howto_operator_request]

    # [START howto_sensor_record]
    def is_completed(job):
        completed = job["completed"]
        return bool(completed and completed["completedOnDateTime"])

    FsmRecordSensor(
        task_id="wait_for_completion",
        path="/jobs/4711",
        single=True,
        predicate=is_completed,
        fields=["id", "status"],
        mode="reschedule",
        poke_interval=300,
        timeout=timedelta(days=14),
    )
    # [END howto_sensor_record]


howto()
