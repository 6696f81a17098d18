"""The ways to name a storage with its Airflow connection."""

import json
import os
from functools import partial
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider.transfers.assets import FsmAssetDynamicFieldsToObjectStorageOperator
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator, FsmFormsToObjectStorageOperator
from tests.s3 import BUCKET
from tests.unit.state_store import context_for

TASKS = {
    "forms.csv": FsmFormsToObjectStorageOperator,
    "asset_fields.csv": FsmAssetDynamicFieldsToObjectStorageOperator,
    "pdfs": partial(FsmFormPdfsToObjectStorageOperator, forms=[5001]),
}


@pytest.fixture
def folder(s3, monkeypatch):
    """A folder that is reached with the connection ``store`` alone."""
    extra = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
    store = {"conn_type": "aws", "login": "tests", "password": "tests", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return f"{BUCKET}/{uuid4()}"


WAYS = {
    "in the URL": lambda folder: {"destination": f"s3://store@{folder}"},
    "beside the URL": lambda folder: {
        "destination": f"s3://{folder}",
        "object_storage_conn_id": "store",
    },
    "in a path": lambda folder: {"destination": ObjectStoragePath(f"s3://{folder}", conn_id="store")},
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_task_writes_with_the_connection(service, connect, folder, name, way):
    service.seed_forms(1)
    connect(service)

    TASKS[name](task_id="t", **way(f"{folder}/{name}")).execute(context_for(None))

    assert list(ObjectStoragePath(f"s3://store@{folder}").iterdir())
