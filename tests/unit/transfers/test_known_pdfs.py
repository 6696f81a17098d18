"""PDFs that are there already: none is read, asked for again or changed."""

import sys
from contextlib import contextmanager

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from moto.moto_server.werkzeug_app import MotoRequestHandler

from fsm_provider.api.forms import for_xcom
from tests.unit.transfers.stored_pdfs import Storage

_opened_files = []


def _record_opened_file(event, arguments):
    if event == "open":
        _opened_files.append(str(arguments[0]))


sys.addaudithook(_record_opened_file)


@pytest.fixture
def references(service, make_client, connect):
    """List the forms of the service."""

    def list_forms():
        connect(service, max_retries=0)
        forms = for_xcom(make_client(service).list_forms(), "full")
        service.clear_requests()
        return forms

    return list_forms


@pytest.fixture
def storage_requests(monkeypatch):
    """Collect the requests to S3 in a block, and the PDFs that are opened on the disk."""
    s3_requests = []

    def log_request(handler, *_):
        s3_requests.append(f"{handler.command} {handler.path}")

    monkeypatch.setattr(MotoRequestHandler, "log_request", log_request, raising=False)

    @contextmanager
    def collect():
        collected = []
        _opened_files.clear()
        s3_requests.clear()
        yield collected
        collected += s3_requests
        collected += [name for name in _opened_files if ".pdf" in name]

    return collect


def test_an_idle_run_lists_the_folder_once_and_reads_no_file(
    service, stored, references, storage_requests
):
    service.seed_forms(12, property_ids=(7, 8))
    first, _ = stored.bring(references())
    files_before = stored.files

    with storage_requests() as requests:
        result, error = stored.bring(references(), context={"run_id": "another run"})

    assert error is None
    assert result == {**first, "stored": 0, "skipped": 12, "bytes": 0}
    assert service.requests == []
    assert stored.files == files_before
    if stored.folder.protocol == "s3":
        [request] = requests
        assert "list-type=2" in request
    else:
        assert requests == []


def test_a_file_that_is_there_is_left_as_it_is(service, stored, references):
    form = service.add_form()
    service.add_form()
    stored.bring(references())
    [name] = [name for name in stored.files if f"form={form['id']}/" in name]
    (stored.folder / name).write_bytes(b"stamped by somebody")

    result, error = stored.bring(references())

    assert error is None
    assert result["skipped"] == 2
    assert stored.files[name] == b"stamped by somebody"


@pytest.mark.parametrize(
    "spelled",
    [
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
    destination = spelled.format(tmp_path)
    service.seed_forms(3)
    folder.bring(references(), destination=destination)
    service.clear_requests()

    result, _ = folder.bring(references(), destination=destination)

    assert result["skipped"] == 3
    assert service.requests == []
    assert len(folder.files) == 3
