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
    store = {
        "conn_type": "aws",
        "login": "tests",
        "password": "tests",
        "extra": {
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "region_name": "us-east-1",
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return f"{BUCKET}/{uuid4()}"


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("destination", [None, ["x.csv"], 5, {"path": "x.csv"}])
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, name, destination):
    monkeypatch.chdir(tmp_path)
    make_task = TASKS[name]

    with pytest.raises(FsmInputError, match=r"^destination: "):
        make_task(task_id="t", destination=destination)

    task = make_task(task_id="t", destination=f"/{name}")
    task.destination = destination  # as another task's output gives it
    with pytest.raises(AirflowFailException, match=r"^destination: "):
        task.execute(context_for(None))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TASKS)
def test_a_folder_that_cannot_be_made_is_named_with_its_argument(service, connect, tmp_path, name):
    service.seed_forms(1)
    connect(service)
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "folder"
    task = TASKS[name](task_id="t", destination=f"{folder}/{name}")
    message = f"destination: .*{folder}.* cannot be made: .*Not a directory"

    with pytest.raises(Exception, match=message):
        task.execute(context_for(None))


def url_with_connection(path):
    return f"s3://store@{path}"


def path_with_connection(path):
    return ObjectStoragePath(f"s3://{path}", conn_id="store")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "destination_for",
    [url_with_connection, path_with_connection],
    ids=["in the URL", "in a path"],
)
def test_a_task_writes_with_the_connection(service, connect, folder, name, destination_for):
    service.seed_forms(1)
    connect(service)
    task = TASKS[name](task_id="t", destination=destination_for(f"{folder}/{name}"))

    task.execute(context_for(None))

    assert list(ObjectStoragePath(f"s3://store@{folder}").iterdir())
