"""The PDFs of the fake's forms in a storage."""

import hashlib
import json

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.lineage import uri_of
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.unit.state_store import context_of

MANIFEST = "manifest.jsonl"


class Storage:
    """What is in a folder, and one try after the other of a task that brings PDFs there."""

    def __init__(self, folder):
        self.folder = folder

    def bring(self, forms, **kwargs):
        """Give the task's result, also where it fails, and what it fails with."""
        context = context_of(None)
        try:
            return self.operator(forms, **kwargs).execute(context), None
        except (AirflowException, AirflowFailException) as error:
            return context["ti"].pushed.get("return_value"), error

    def operator(self, forms, **kwargs):
        arguments = {"destination": str(self.folder), "manifest": MANIFEST, **kwargs}
        return FsmFormPdfsToObjectStorageOperator(task_id="pdfs", forms=forms, **arguments)

    @property
    def files(self):
        """All files but the manifest, by their path in the folder."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        contents = {str(path).removeprefix(f"{self.folder}/"): path.read_bytes() for path in files}
        return {name: content for name, content in contents.items() if name != MANIFEST}

    @property
    def manifest(self):
        return [json.loads(line) for line in (self.folder / MANIFEST).read_text().splitlines()]

    def line_of(self, name, content):
        """What the manifest says of a file."""
        digest = hashlib.sha256(content).hexdigest()
        return {"path": uri_of(self.folder / name), "sha256": digest, "bytes": len(content)}


@pytest.fixture
def stored(storage):
    return Storage(storage)


@pytest.fixture
def on_disk(tmp_path):
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    return Storage(ObjectStoragePath(str(tmp_path / "storage")))
