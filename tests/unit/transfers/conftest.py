"""The PDFs of the fake's forms in a storage."""

import multiprocessing
from multiprocessing import forkserver

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.unit.conftest import contents
from tests.unit.state_store import context_for


class Storage:
    """A folder, and a task that stores PDFs in it, once for each attempt."""

    def __init__(self, folder):
        self.folder = folder

    def bring(self, forms, *, context=(), **kwargs):
        """Return the task's result, also if it fails, and its error."""
        context = context_for(None, **dict(context))
        try:
            return self.operator(forms, **kwargs).execute(context), None
        except (AirflowException, AirflowFailException) as error:
            return context["ti"].pushed.get("return_value"), error

    def operator(self, forms, **kwargs):
        arguments = {"destination": str(self.folder), **kwargs}
        return FsmFormPdfsToObjectStorageOperator(task_id="pdfs", forms=forms, **arguments)

    @property
    def files(self):
        """All files, by their path in the folder."""
        return contents(self.folder)


@pytest.fixture(scope="session")
def spool_folder(tmp_path_factory):
    """Where the ``processes`` write their temporary files."""
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="session")
def processes(spool_folder):
    """Make processes by forking one that has done what takes them their first second: they start at
    once.

    There is one such process for all tests, and SQLite reads its folder there once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.transfers.warm", "tests.unit.transfers.killed"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQLITE_TMPDIR", str(spool_folder))
        patch.setenv("TMPDIR", str(spool_folder))
        forkserver.ensure_running()
    return context


@pytest.fixture
def stored(storage):
    return Storage(storage)


@pytest.fixture
def on_disk(tmp_path):
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    return Storage(ObjectStoragePath(str(tmp_path / "storage")))
