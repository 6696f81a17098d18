"""An export that fails, and an export into the wrong folder: what was there before stays."""

import errno
import itertools
import json
import os
import subprocess
from datetime import UTC, datetime
from uuid import uuid4

import boto3
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, ObjectStoragePath
from fsspec.implementations.local import LocalFileOpener
from s3fs.core import S3File

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.s3 import BUCKET
from tests.unit.conftest import contents
from tests.unit.state_store import context_for
from tests.unit.transfers.test_exports import export, export_assets, ids

START = datetime(2026, 1, 30, 22, tzinfo=UTC)


def connect_as(monkeypatch, name, service, **changes):
    connection = {**service.connection(), **changes}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


@pytest.mark.parametrize("task", [export, export_assets])
def test_a_folder_of_another_account_is_refused(service, storage, monkeypatch, task):
    for name in ("north", "south"):
        connect_as(monkeypatch, name, service)
    task(storage, fsm_conn_id="north")
    before = contents(storage)
    service.clear_requests()

    with pytest.raises(AirflowFailException) as raised:
        task(storage, fsm_conn_id="south")

    said = str(raised.value)
    assert "holds another export" in said
    assert "connection: 'north', not 'south'" in said
    assert "If only the connection's name or host changed, delete what is there" in said
    assert service.requests == []
    assert contents(storage) == before
    task(storage, fsm_conn_id="north")


def test_a_folder_of_another_service_is_refused(service, storage, monkeypatch):
    connect_as(monkeypatch, "north", service)
    export(storage, fsm_conn_id="north")
    other = service.connection()["host"].replace("127.0.0.1", "localhost")

    connect_as(monkeypatch, "north", service, host=other)
    with pytest.raises(
        AirflowFailException, match=r"service: 'http://127\.0\.0\.1:.*', not 'http://localhost:"
    ):
        export(storage, fsm_conn_id="north")


def test_a_new_token_is_the_same_account(service, storage, monkeypatch):
    connect_as(monkeypatch, "north", service)
    export(storage, fsm_conn_id="north")
    service.settings.token = "rotated"

    connect_as(monkeypatch, "north", service, password="rotated")
    export(storage, fsm_conn_id="north")


def test_a_value_too_long_for_a_name_has_a_folder_of_its_own(service, connect, storage):
    values = ["家" * 40, "家" * 39 + "屋", "x" * 246, "x" * 247, "x" * 300, "a/b"]
    forms = [service.add_form(created=START, propertyID=value)["id"] for value in values]
    connect(service)

    export(storage, partition_by="property")

    found = ids(storage)
    assert sorted(found.values()) == [[form] for form in forms]
    folders = [name.partition("/")[0] for name in found]
    assert max(len(folder.encode()) for folder in folders) == 255
    assert {f"property={'x' * 246}", "property=a%2Fb"} <= set(folders)
    before = contents(storage)
    export(storage, partition_by="property")
    assert contents(storage) == before


class Full:
    """A storage that takes so many writes and no more."""

    def __init__(self, monkeypatch):
        self.left = None
        for kind, method in ((LocalFileOpener, "write"), (S3File, "_upload_chunk")):
            monkeypatch.setattr(kind, method, self.limited(getattr(kind, method)))

    def limited(self, write):
        def limited(*args, **kwargs):
            if self.left is not None:
                if not self.left:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.left -= 1
            return write(*args, **kwargs)

        return limited


def test_a_full_storage_leaves_the_export_before_it(service, connect, storage, monkeypatch):
    for number in range(3):
        service.add_form(created=START, propertyID=str(number))
    connect(service)
    export(storage, partition_by="property")
    before = contents(storage)
    service.update_form(5001, propertyID="3")
    service.update_form(5002)
    full = Full(monkeypatch)

    for writes in itertools.count():
        full.left = writes
        try:
            export(storage, partition_by="property")
            break
        except OSError:
            assert contents(storage) == before

    assert writes >= 5
    assert ids(storage).keys() == {f"property={number}/forms.jsonl" for number in (1, 2, 3)}


class OnFirst:
    """Does something else before the first call of a function for files on a disk, and of one for S3."""

    def __init__(self, monkeypatch, functions, action):
        self.action = action
        for owner, function in functions:
            monkeypatch.setattr(owner, function, self.preceded(getattr(owner, function)))

    def preceded(self, call):
        def preceded(*args, **kwargs):
            action, self.action = self.action, None
            if action:
                action()
            return call(*args, **kwargs)

        return preceded


FIRST_WRITE = [(LocalFileOpener, "write"), (S3File, "write")]
FIRST_COMMIT = [(os, "rename"), (S3File, "commit")]


def export_in_another_run(service, storage):
    """Export another form too, as a run that began later and ends first."""
    service.add_form(created=START, propertyID="8")
    context = context_for(None)
    context["ti"].run_id = "another run"
    FsmFormsToObjectStorageOperator(task_id="t", destination=str(storage), partition_by="property").execute(
        context
    )


def test_of_two_runs_whose_files_appear_at_the_same_time_the_last_fails(
    service, connect, storage, monkeypatch
):
    service.add_form(created=START, propertyID="7")
    connect(service)

    def second_commit():
        commits.action = lambda: export_in_another_run(service, storage)

    commits = OnFirst(monkeypatch, FIRST_COMMIT, second_commit)
    with pytest.raises(AirflowException, match=r"another run has written .* at the same time"):
        export(storage, partition_by="property")

    export(storage, partition_by="property")
    assert contents(storage).keys() == {
        "_manifest.json",
        "property=7/forms.jsonl",
        "property=8/forms.jsonl",
    }


def test_a_run_removes_the_files_of_one_that_ended_since_it_began(service, connect, storage, monkeypatch):
    service.add_form(created=START, propertyID="7")
    connect(service)

    OnFirst(monkeypatch, FIRST_WRITE, lambda: export_in_another_run(service, storage))
    export(storage, partition_by="property")

    assert contents(storage).keys() == {"_manifest.json", "property=7/forms.jsonl"}


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of a megabyte, where root may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_leaves_the_export_before_it(service, connect, small_disk):
    service.seed_forms(600, property_ids=(7, 8, 9), first_created=START)
    connect(service)
    export(small_disk, partition_by="property")
    before = contents(small_disk)
    service.update_form(5001)
    disk = os.statvfs(small_disk)
    ballast = small_disk / "_ballast"
    ballast.write_bytes(b"x" * (disk.f_bavail * disk.f_frsize - 2 * len(before["property=8/forms.jsonl"])))
    before["_ballast"] = ballast.read_bytes()

    with pytest.raises(OSError, match="No space left"):
        export(small_disk, partition_by="property")
    assert contents(small_disk) == before

    ballast.unlink()
    export(small_disk, partition_by="property")
    assert sum(map(len, ids(small_disk).values())) == 600


def test_uploads_of_an_export_that_fails_are_given_up(service, connect, storage_on_s3, monkeypatch):
    service.add_form()
    connect(service)
    full = Full(monkeypatch)

    full.left = 1
    with pytest.raises(OSError, match="No space left"):
        export(storage_on_s3)

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    ours = storage_on_s3.path.removeprefix(f"{BUCKET}/")
    uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix=ours).get("Uploads", [])
    client.close()
    assert uploads == []


@pytest.fixture
def storage_on_s3(s3):
    return ObjectStoragePath(f"s3://{BUCKET}/{uuid4()}")
