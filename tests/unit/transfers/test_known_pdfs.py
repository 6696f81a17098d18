"""PDFs that are there already: none is read, asked for again or changed."""

import sys
from contextlib import contextmanager

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from moto.moto_server.werkzeug_app import MotoRequestHandler

from fsm_provider.api.forms import for_xcom
from tests.capabilities import RELATIVE_PATHS
from tests.unit.transfers.conftest import Storage

_opened = []
_ = sys.addaudithook(
    lambda event, arguments: _opened.append(str(arguments[0])) if event == "open" else None
)


@pytest.fixture
def references(service, make_client, connect):
    def listed():
        connect(service, max_retries=0)
        forms = for_xcom(make_client(service).list_forms(), "full")
        service.clear_requests()
        return forms

    return listed


@pytest.fixture
def storage_requests(monkeypatch):
    """Collect what S3 is asked in a block, and which PDFs are opened on the disk."""
    asked = []
    monkeypatch.setattr(
        MotoRequestHandler,
        "log_request",
        lambda handler, *_: asked.append(f"{handler.command} {handler.path}"),
        raising=False,
    )

    @contextmanager
    def collecting():
        found = []
        _opened.clear()
        asked.clear()
        yield found
        found += [*asked, *(name for name in _opened if ".pdf" in name)]

    return collecting


def test_an_idle_run_lists_the_folder_once_and_reads_no_file(
    service, stored, references, storage_requests
):
    service.seed_forms(12, property_ids=(7, 8))
    first, _ = stored.bring(references())
    before = stored.files

    with storage_requests() as asked:
        result, error = stored.bring(references(), context={"run_id": "another run"})

    assert error is None
    assert result == {**first, "stored": 0, "skipped": 12, "bytes": 0}
    assert service.requests == []
    assert stored.files == before
    assert len(asked) == (1 if stored.folder.protocol == "s3" else 0), asked
    assert all("list-type=2" in one for one in asked)


def test_a_file_that_is_there_is_left_as_it_is(service, stored, references):
    form, _ = service.add_form(), service.add_form()
    stored.bring(references())
    (name,) = (name for name in stored.files if f"form={form['id']}/" in name)
    (stored.folder / name).write_bytes(b"stamped by somebody")

    result, error = stored.bring(references())

    assert error is None
    assert result["skipped"] == 2
    assert stored.files[name] == b"stamped by somebody"


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param("records", marks=RELATIVE_PATHS.needed),
        pytest.param("./records/", marks=RELATIVE_PATHS.needed),
        "{0}//records",
        "{0}/a/../records",
        "file://{0}/records/",
    ],
)
def test_a_folder_is_known_however_it_is_spelled(
    service, references, tmp_path, monkeypatch, spelled
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    folder = Storage(ObjectStoragePath(str(tmp_path / "records")))
    service.seed_forms(3)
    folder.bring(references(), destination=spelled.format(tmp_path))
    service.clear_requests()

    result, _ = folder.bring(references(), destination=spelled.format(tmp_path))

    assert (result["skipped"], service.requests) == (3, [])
    assert len(folder.files) == 3
