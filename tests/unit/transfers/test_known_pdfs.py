"""PDFs that are there already: which are read, repaired, refused or left."""

import hashlib
import json
import sys
from contextlib import contextmanager

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from moto.moto_server.werkzeug_app import MotoRequestHandler

from fsm_provider.api.forms import for_xcom
from fsm_provider.storage.lineage import uri_for
from fsm_provider.testing import faults

PDFS = ("GET", "/forms/*/pdf")
_opened = []
_ = sys.addaudithook(lambda event, arguments: _opened.append(str(arguments[0])) if event == "open" else None)


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


@pytest.fixture
def references(service, make_client):
    def listed():
        forms = for_xcom(make_client(service).list_forms(), "full")
        service.clear_requests()
        return forms

    return listed


@pytest.fixture
def reading(monkeypatch):
    """Collect which PDFs are opened on the disk, or got from S3, in a block."""
    asked = []

    def note(handler, *_):
        asked.append(f"{handler.command} {handler.path}")

    monkeypatch.setattr(MotoRequestHandler, "log_request", note, raising=False)

    @contextmanager
    def collecting():
        found = []
        _opened.clear()
        asked.clear()
        yield found
        got = [one for one in asked if one.startswith("GET ")]
        found += [one for one in (*_opened, *got) if ".pdf" in one]

    return collecting


def ends(stored):
    return [line["outcome"] for line in stored.manifest]


def replace(stored, name, content):
    """Put a file there, and a manifest that has its digest, but no ETag that shows it to be complete."""
    path = stored.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    line = {"path": uri_for(path), "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    line |= {"etag": None, "outcome": "stored"}
    (stored.folder / "manifest.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize("manifest", ["manifest.jsonl", "second.jsonl"])
def test_an_idle_run_reads_no_file(service, stored, references, reading, manifest):
    service.seed_forms(3)
    stored.bring(references())
    first = stored.manifest

    with reading() as read:
        result, error = stored.bring(references(), manifest=manifest)

    assert error is None
    assert read == []
    assert result["skipped"] == 3
    assert service.requests == []
    second = (stored.folder / manifest).read_text().splitlines()
    assert [json.loads(line) for line in second] == [{**line, "outcome": "skipped"} for line in first]


def test_a_file_that_nobody_knows_is_read_once(service, stored, references, reading):
    service.seed_forms(2)
    stored.bring(references())
    for path in ("manifest.jsonl", "_latest"):
        stored.folder.fs.rm((stored.folder / path).path, recursive=True)

    with reading() as read:
        stored.bring(references())
    assert len(set(read)) == 2
    assert ends(stored) == ["skipped"] * 2
    with reading() as read:
        stored.bring(references())
    assert read == []


def test_a_file_that_was_changed_is_read_though_its_size_is_the_same(service, stored, references):
    service.add_form()
    stored.bring(references())
    (name,) = stored.files
    changed = stored.files[name].replace(b"/Title", b"/title")
    (stored.folder / name).write_bytes(changed)

    _, error = stored.bring(references(), manifest="second.jsonl")
    assert error is None
    (line,) = (stored.folder / "second.jsonl").read_text().splitlines()
    assert json.loads(line)["sha256"] == hashlib.sha256(changed).hexdigest()

    _, error = stored.bring(references())
    assert "is not the file that the earlier manifest names" in str(error), "though a later run knows it"
    assert stored.files[name] == changed


@pytest.mark.parametrize("with_manifest", [True, False])
def test_half_a_file_is_fetched_again(service, stored, references, reading, with_manifest):
    form = service.add_form()
    stored.bring(references())
    (name,) = stored.files
    stored.folder.fs.rm((stored.folder / "_latest").path, recursive=True)
    replace(stored, name, service.pdf(form["id"])[:200])
    if not with_manifest:
        (stored.folder / "manifest.jsonl").unlink()

    result, error = stored.bring(references())

    assert error is None
    assert result["stored"] == 1
    assert stored.files == {name: service.pdf(form["id"])}
    with reading() as read:
        stored.bring(references())
    assert (read, ends(stored)) == ([], ["skipped"])


def test_half_a_file_that_cannot_be_had_again_stays_and_counts_as_failed(service, stored, references):
    form = service.add_form()
    stored.bring(references())
    (name,) = stored.files
    stored.folder.fs.rm((stored.folder / "_latest").path, recursive=True)
    half = service.pdf(form["id"])[:200]
    replace(stored, name, half)
    service.fail(*PDFS, faults.Status(503), call=1)

    _, error = stored.bring(references())
    assert isinstance(error, AirflowException)
    assert not isinstance(error, AirflowFailException)
    assert stored.files == {name: half}
    assert (ends(stored), stored.manifest[0]["etag"]) == (["failed"], None)

    _, error = stored.bring(references())
    assert error is None
    assert stored.files == {name: service.pdf(form["id"])}


def test_a_complete_file_without_an_etag_is_left(service, stored, references):
    form = service.add_form()
    stored.bring(references())
    (name,) = stored.files
    stored.folder.fs.rm((stored.folder / "_latest").path, recursive=True)
    replace(stored, name, service.pdf(form["id"]))

    stored.bring(references())

    assert service.requests == []
    assert ends(stored) == ["skipped"]


def test_a_file_whose_length_came_is_not_fetched_again_though_it_has_no_end(service, stored, references):
    service.add_form()
    service.fail(*PDFS, faults.Huge(5_000))

    for _ in range(3):
        _, error = stored.bring(references())
        assert error is None

    assert ends(stored) == ["skipped"]
    assert service.requests == []


@pytest.mark.parametrize("line_break", ["\u2028", "\u2029", "\x85"], ids=ascii)
def test_a_manifest_with_odd_line_breaks_in_a_record_is_read(service, on_disk, references, line_break):
    service.add_form()
    forms = [*references(), {"id": 999_999, "lastUpdatedOnDateTime": f"odd{line_break}"}]

    for end in ("stored", "skipped"):
        _, error = on_disk.bring(forms)
        assert "form 999999 is not in the listing" in str(error)
        assert ends(on_disk) == [end, "failed"]

    assert on_disk.manifest[1]["lastUpdatedOnDateTime"] == f"odd{line_break}"


def test_tasks_and_mapped_tasks_know_their_own_files(service, on_disk, references):
    service.add_form()
    on_disk.bring(references())
    on_disk.bring(references(), context={"map_index": 3})
    on_disk.bring(references(), context={"task_id": "other"})

    assert len(list((on_disk.folder / "_latest").iterdir())) == 3
