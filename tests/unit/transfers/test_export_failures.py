"""An export that fails: what was there before stays."""

import errno
import itertools
import os
import sys
from uuid import uuid4

import boto3
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath
from fsspec.implementations.local import LocalFileOpener
from s3fs import S3FileSystem

from fsm_provider.api import FsmResponseError
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.s3 import BUCKET
from tests.unit.conftest import contents
from tests.unit.state_store import context_for
from tests.unit.transfers.exports import START, export, export_assets, ids


class FullStorage:
    """A storage that takes so many writes and no more; None: any number."""

    def __init__(self, monkeypatch):
        self.writes_left = None
        write = LocalFileOpener.write
        call_s3 = S3FileSystem._call_s3

        def limited_write(*args, **kwargs):
            self.count()
            return write(*args, **kwargs)

        async def limited_call(files, method, *args, **kwargs):
            if method in ("put_object", "upload_part", "complete_multipart_upload"):
                self.count()
            return await call_s3(files, method, *args, **kwargs)

        monkeypatch.setattr(LocalFileOpener, "write", limited_write)
        monkeypatch.setattr(S3FileSystem, "_call_s3", limited_call)

    def count(self):
        if self.writes_left is None:
            return
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes_left -= 1


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_a_full_storage_leaves_the_export_before_it(service, connect, storage, monkeypatch, format):
    service.seed_forms(3, first_created=START)
    connect(service)
    export(storage, format=format)
    before = contents(storage)
    service.add_form(created=START)
    full = FullStorage(monkeypatch)

    for writes in itertools.count():
        full.writes_left = writes
        try:
            export(storage, format=format)
            break
        except OSError:
            assert contents(storage) == before

    assert writes >= 1
    assert len(ids(storage)[f"forms.{format}"]) == 4


def test_uploads_of_an_export_that_fails_are_given_up(service, connect, storage_on_s3, monkeypatch):
    service.add_form()
    connect(service)
    full = FullStorage(monkeypatch)

    full.writes_left = 0
    with pytest.raises(OSError, match="No space left"):
        export(storage_on_s3)

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    prefix = storage_on_s3.path.removeprefix(f"{BUCKET}/")
    listing = client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    client.close()
    assert listing.get("Uploads", []) == []


@pytest.fixture
def storage_on_s3(s3):
    return ObjectStoragePath(f"s3://{BUCKET}/{uuid4()}")


def store_pdfs(folder):
    operator = FsmFormPdfsToObjectStorageOperator(task_id="t", destination=folder, forms=[5001])
    operator.execute(context_for(None))


@pytest.mark.parametrize("task", [export, export_assets, store_pdfs])
@pytest.mark.parametrize(
    ("scheme", "missing", "install"),
    [
        ("s3", "s3fs", r"apache-airflow-providers-amazon\[s3fs\]"),
        ("abfs", None, "apache-airflow-providers-microsoft-azure"),
        ("gs", None, "apache-airflow-providers-google"),
        ("odd", None, "the provider package for odd://"),
    ],
)
def test_a_storage_whose_package_is_missing_is_named_before_anything_is_listed(
    service, connect, monkeypatch, task, scheme, missing, install
):
    connect(service)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    destination = f"{scheme}://{uuid4()}@bucket/folder"
    message = rf"destination: {scheme}://.* needs {install} \("

    with pytest.raises(AirflowFailException, match=message):
        task(destination)

    assert service.requests == []


def test_an_identifier_of_more_than_64_bits_is_named(service, connect, storage):
    connect(service)
    service.add_form(id=2**63)

    message = "nothing is exported: an identifier has more than 64 bits"

    with pytest.raises(FsmResponseError, match=message):
        export(storage)
