"""The PDFs of the fake's forms in a storage."""

import multiprocessing
from multiprocessing import forkserver

import pytest

from tests.unit.transfers.stored_pdfs import Storage


@pytest.fixture(scope="session")
def spool_folder(tmp_path_factory):
    """Where the ``processes`` write their temporary files."""
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="session")
def processes(spool_folder):
    """Make processes that start at once: they are forked off one that has made an export.

    There is one such process for all tests, and SQLite reads its folder there once.
    """
    preloaded = [
        "tests.unit.transfers.preloaded_export",
        "tests.unit.transfers.killed_process",
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded)
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
