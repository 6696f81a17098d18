"""The ways to name a storage with its Airflow connection."""

import json
import os
from functools import partial
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath

from fsm_provider.api import FsmInputError
from fsm_provider.transfers.assets import FsmAssetDynamicFieldsToObjectStorageOperator
from fsm_provider.transfers.forms import (
    FsmFormPdfsToObjectStorageOperator,
    FsmFormsToObjectStorageOperator,
)
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


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("given", [None, ["x.csv"], 5, {"path": "x.csv"}])
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, name, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FsmInputError, match=r"^destination: "):
        TASKS[name](task_id="t", destination=given)
    task = TASKS[name](task_id="t", destination=f"/{name}")
    task.destination = given  # as another task's output gives it

    with pytest.raises(AirflowFailException, match=r"^destination: "):
        task.execute(context_for(None))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TASKS)
def test_a_folder_that_cannot_be_made_is_named_with_its_argument(service, connect, tmp_path, name):
    service.seed_forms(1)
    connect(service)
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "folder"

    with pytest.raises(
        Exception, match=f"destination: .*{folder}.* cannot be made: .*Not a directory"
    ):
        TASKS[name](task_id="t", destination=f"{folder}/{name}").execute(context_for(None))


WAYS = {
    "in the URL": lambda folder: {"destination": f"s3://store@{folder}"},
    "in a path": lambda folder: {
        "destination": ObjectStoragePath(f"s3://{folder}", conn_id="store")
    },
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_task_writes_with_the_connection(service, connect, folder, name, way):
    service.seed_forms(1)
    connect(service)

    TASKS[name](task_id="t", **way(f"{folder}/{name}")).execute(context_for(None))

    assert list(ObjectStoragePath(f"s3://store@{folder}").iterdir())
