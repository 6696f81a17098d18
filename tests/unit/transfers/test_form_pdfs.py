"""PDFs of forms in a storage: which are fetched, under which names, and one outcome for each."""

import json
import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    ObjectStoragePath,
)
from botocore.exceptions import EndpointConnectionError
from s3fs import S3FileSystem

from fsm_provider.api.errors import FsmStorageError
from fsm_provider.api.forms import for_xcom
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.testing import FakeFileHost, faults
from fsm_provider.transfers import pdfs
from fsm_provider.transfers.pdfs import MAX_FAILURES_IN_A_ROW
from tests.capabilities import THREADS
from tests.unit.state_store import context_for

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PDFS = ("GET", "/forms/*/pdf")


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service)


@pytest.fixture
def references(service, make_client):
    """List the forms of the service as XCom holds them, by default as references."""

    def list_forms(xcom="references"):
        forms = for_xcom(make_client(service).list_forms(), xcom)
        service.clear_requests()
        return forms

    return list_forms


def path_for(form):
    updated = datetime.fromisoformat(form["lastUpdatedOnDateTime"])
    version = updated.strftime("%Y-%m-%dT%H%M%S.%fZ")
    job_id = form["jobDetails"]["jobID"]
    return f"property={form['propertyID']}/job={job_id}/form={form['id']}/v={version}.pdf"


def is_stored(result):
    """Return for each input, in order, whether its PDF is stored."""
    return [path is not None for path in result["paths"]]


def pdfs_of_all_forms(service):
    return [service.pdf(form["id"]) for form in service.forms]


def test_each_pdf_is_stored_under_its_version(service, stored, references):
    service.seed_forms(12, property_ids=(7, 8), first_created=NOON)

    result, error = stored.bring(references())

    assert error is None
    assert stored.files == {path_for(form): service.pdf(form["id"]) for form in service.forms}
    size = sum(map(len, stored.files.values()))
    contents = [ObjectStoragePath(path).read_bytes() for path in result.pop("paths")]
    assert contents == pdfs_of_all_forms(service)
    assert result == {
        "stored": 12,
        "skipped": 0,
        "failed": 0,
        "not_tried": 0,
        "bytes": size,
    }


def test_references_are_listed_once_with_the_narrowest_filter(service, on_disk, references):
    service.seed_forms(5, first_created=NOON - timedelta(days=1))
    service.add_form(job_id=70, property_id=7, created=NOON + timedelta(minutes=5))
    service.add_form(job_id=70, property_id=7, created=NOON + timedelta(minutes=3))
    forms_of_job = [form for form in references() if form["jobID"] == 70]

    _, error = on_disk.bring(forms_of_job)

    assert error is None
    [listing] = service.requests_to("GET", "/forms")
    assert dict(listing.query) == {
        "propertyID": "7",
        "jobID": "70",
        "lastUpdatedOnDateTime[gte]": "2026-03-01T12:03:00.000Z",
    }


ODD_VALUES = [
    ["x"],
    True,
    1.5,
    {"jobID": {"a": 1}},
    "\ud800",
    "0001-01-01T00:00:00+14:00",
]
"""Values that no service should send: a record keeps them as they came."""


@pytest.mark.parametrize(
    "field",
    [
        "lastUpdatedOnDateTime",
        "createdOnDateTime",
        "propertyID",
        "jobID",
        "jobDetails",
        "formName",
        "formPDFURL",
    ],
)
def test_an_odd_value_in_a_record_stops_no_pdf(service, on_disk, field):
    forms = []
    for value in ODD_VALUES:
        form = service.add_form(created=NOON)
        forms.append({"id": form["id"], field: value})
    last = service.add_form(created=NOON)
    forms.append({"id": last["id"]})

    result, error = on_disk.bring(forms)

    assert error is None
    assert result["stored"] == len(service.forms)
    assert sorted(on_disk.files.values()) == sorted(pdfs_of_all_forms(service))


def test_a_listing_is_read_no_further_than_it_takes(service, on_disk):
    service.seed_forms(30)

    on_disk.bring([5001, "5012"])

    assert len(service.requests_to("GET", "/forms")) == 2
    first = path_for(service.forms[0])
    twelfth = path_for(service.forms[11])
    assert sorted(on_disk.files) == sorted([first, twelfth])


def test_the_newer_version_is_stored(service, on_disk, references, caplog):
    caplog.set_level(logging.INFO)
    form = service.add_form(created=NOON)
    older = references()
    changed = service.update_form(form["id"])

    on_disk.bring([*older, form["id"]])

    assert on_disk.files == {path_for(changed): service.pdf(form["id"])}
    assert f"Form {form['id']} stored: {path_for(changed)}" in caplog.text
    assert len(service.requests_to(*PDFS)) == 1


def test_inputs_of_one_version_are_fetched_once(service, on_disk, references):
    service.add_form()

    result, _ = on_disk.bring([*references(), *references(), *references("full"), 5001])

    assert len(service.requests_to(*PDFS)) == 1
    assert len(set(result["paths"])) == 1
    assert result["stored"] == 3
    assert result["skipped"] == 1
    assert result["bytes"] == len(service.pdf(5001))


def test_a_form_that_is_not_listed_fails_and_does_not_stop_the_others(service, on_disk, references):
    service.add_form()

    result, error = on_disk.bring([4711, *references()])

    assert isinstance(error, AirflowFailException)
    summary, *details = str(error).splitlines()
    assert summary == f"2 PDFs: 1 stored, 1 failed; {result['bytes']:,} bytes"
    assert "forms[0]: form 4711 is not in the listing (all forms)" in "\n".join(details)
    assert is_stored(result) == [False, True]


def test_what_a_storages_library_raises_does_not_stop_the_others(
    service, stored, references, monkeypatch
):
    rename = os.rename
    call_s3 = S3FileSystem._call_s3

    def raise_for_second(path):
        if "form=5002" in str(path):
            raise EndpointConnectionError(endpoint_url="https://s3.example.com")

    def rename_others(source, target):
        raise_for_second(target)
        rename(source, target)

    async def put_others(files, method, *args, **kwargs):
        if method == "put_object":
            raise_for_second(kwargs.get("Key"))
        return await call_s3(files, method, *args, **kwargs)

    monkeypatch.setattr(os, "rename", rename_others)
    monkeypatch.setattr(S3FileSystem, "_call_s3", put_others)
    service.seed_forms(3)

    result, error = stored.bring(references())

    assert isinstance(error.__cause__, FsmStorageError)
    assert "form 5002: " in str(error)
    assert "EndpointConnectionError" in str(error)
    assert result["stored"] == 2
    assert result["failed"] == 1
    assert is_stored(result) == [True, False, True]
    assert len(stored.files) == 2


def test_a_form_without_a_readable_time_cannot_be_versioned(service, on_disk):
    service.add_form(lastUpdatedOnDateTime=None)

    _, error = on_disk.bring([5001])

    assert "form 5001: its record has no readable lastUpdatedOnDateTime" in str(error)
    assert on_disk.files == {}


@pytest.mark.parametrize(("status", "retried"), [(503, True), (401, False)])
def test_a_listing_that_fails_fails_the_forms_that_are_looked_up(
    service, connect, on_disk, status, retried
):
    connect(service, max_retries=0)
    service.seed_forms(2)
    service.fail("GET", "/forms", faults.Status(status), every=True)

    _, error = on_disk.bring([5001, 5002])

    assert isinstance(error, AirflowFailException) is not retried
    assert f"GET /forms returned HTTP {status}" in str(error)
    assert on_disk.files == {}


@pytest.mark.parametrize(
    ("fault", "said", "retried"),
    [
        (faults.Huge(50_000), "larger than max_bytes, 10,000", False),
        (faults.Status(503), "returned HTTP 503", True),
        (faults.Redirect("https://[oops/"), "it redirects to a URL that is not valid", False),
        (faults.Trickle(30, chunks=300), "did not arrive within 1 s", True),
    ],
)
def test_a_bad_one_does_not_stop_the_others(
    service, connect, on_disk, references, fault, said, retried
):
    connect(service, max_retries=0)
    service.seed_forms(3)
    service.fail("GET", "/forms/5002/pdf", fault, every=True)

    result, error = on_disk.bring(references("full"), max_bytes=10_000, max_seconds="1")

    assert isinstance(error, AirflowFailException) is not retried
    assert is_stored(result) == [True, False, True]
    assert said in str(error)
    assert len(on_disk.files) == 2


def test_urls_that_expire_are_replaced(service, on_disk, references):
    service.seed_forms(10)
    with FakeFileHost(service) as files:
        files.fail(*PDFS, faults.Status(403), calls=range(4, 11))

        result, error = on_disk.bring(references(), allow_private_addresses=True, max_concurrency=1)

    assert error is None
    assert result["stored"] == 10
    assert len(service.requests_to("GET", "/forms")) > 1


def test_a_host_that_refuses_every_url_stops_the_lookups(service, on_disk, references):
    service.seed_forms(3)
    with FakeFileHost(service, lifetime=-1):
        result, error = on_disk.bring(references(), allow_private_addresses=True)

    assert result["failed"] == 3
    assert "GET the PDF of form 5001 returned HTTP 403" in str(error)
    assert len(service.requests_to("GET", "/forms")) == 1


def test_a_private_host_is_refused_unless_allowed(service, on_disk, references):
    service.add_form()
    with FakeFileHost(service) as files:
        _, error = on_disk.bring(references())
        assert files.requests == []
        assert "allow_private_addresses" in str(error)

        _, error = on_disk.bring(references(), allow_private_addresses="True")
        assert error is None


def test_failures_in_a_row_stop_the_transfer_and_leave_the_rest_to_a_retry(
    service, connect, on_disk, references
):
    connect(service, max_retries=0)
    service.seed_forms(MAX_FAILURES_IN_A_ROW + 10)
    forms = references("full")

    with service.refuse_connections():
        result, error = on_disk.bring(forms, max_concurrency=1)

    assert not isinstance(error, AirflowFailException)
    assert result["failed"] == MAX_FAILURES_IN_A_ROW
    assert result["not_tried"] == 10
    assert len(result["paths"]) == len(forms)
    assert "and 0 more" not in str(error)


@THREADS.needed
def test_failures_that_several_threads_count_at_once_stop_the_transfer(
    service, connect, on_disk, references
):
    """Each thread waits before each line, so that others count between two lines of its own."""
    connect(service, max_retries=0)
    service.seed_forms(2 * MAX_FAILURES_IN_A_ROW + 40)
    forms = references("full")

    def wait(frame, event, _):
        if frame.f_code.co_filename != pdfs.__file__:
            return None
        if event == "line":
            time.sleep(0.002)
        return wait

    threading.settrace(wait)
    try:
        with service.refuse_connections():
            result, _ = on_disk.bring(forms, max_concurrency=16)
    finally:
        threading.settrace(None)

    assert MAX_FAILURES_IN_A_ROW <= result["failed"] <= MAX_FAILURES_IN_A_ROW + 16
    assert result["not_tried"] == len(forms) - result["failed"]


def test_what_asks_to_wait_is_the_cause_for_a_retry_policy(service, connect, on_disk, references):
    connect(service, max_retries=0)
    service.seed_forms(2)
    service.fail("GET", "/forms/5001/pdf", faults.Status(404), every=True)
    service.fail("GET", "/forms/5002/pdf", faults.Status(429, retry_after=300), every=True)

    _, error = on_disk.bring(references("full"))

    assert not isinstance(error, AirflowFailException)
    assert error.__cause__.retry_after == 300


@THREADS.needed
def test_a_stop_gives_up_what_is_under_way_and_leaves_nothing_behind(service, stored, references):
    service.seed_forms(3)
    service.fail(*PDFS, faults.Trickle(30, chunks=300), every=True)
    operator = stored.operator(references("full"), max_concurrency=2)
    errors = []

    def execute():
        try:
            operator.execute(context_for(None))
        except AirflowException as error:
            errors.append(error)

    task = threading.Thread(target=execute)
    task.start()
    service.wait_for(lambda: len(service.requests_to(*PDFS)) == 2, 10)
    operator.on_kill()
    service.stop()
    task.join(10)

    assert not task.is_alive()
    assert "the task was stopped" in str(errors[0])
    assert stored.files == {}


def test_so_many_are_fetched_at_once(service, on_disk, references):
    service.seed_forms(16)
    all_are_here = threading.Barrier(8)
    under_way = []
    counts = []

    def meet():
        under_way.append(None)
        all_are_here.wait(20)
        time.sleep(0.1)  # a ninth would be here by then
        counts.append(len(under_way))
        under_way.pop()
        all_are_here.wait(20)

    service.fail(*PDFS, faults.Before(meet), every=True)

    _, error = on_disk.bring(references("full"), max_concurrency=8)

    assert error is None
    assert max(counts) == 8
    assert service.requests_to("GET", "/forms") == [], "full records need no listing"


def test_forms_may_come_as_json_of_a_template(service, on_disk, references):
    service.add_form()

    _, error = on_disk.bring(json.dumps(references()))
    assert error is None

    _, error = on_disk.bring("[{'id': 1}]")
    assert isinstance(error, AirflowFailException)
    assert "end its template with | tojson" in str(error)


def test_values_lead_to_no_other_folder(service, on_disk):
    service.add_form(propertyID="../..", created=NOON, formName="/../../etc")

    on_disk.bring([5001])

    assert list(on_disk.files) == [
        "property=..%2F../job=1/form=5001/v=2026-03-01T120000.000000Z.pdf"
    ]


def test_the_hook_stores_one_file(service, stored):
    form = service.add_form()
    content = service.pdf(form["id"])

    size = FsmHook().download_form_pdf(form, stored.folder / "deep" / "a.pdf")

    assert stored.files == {"deep/a.pdf": content}
    assert size == len(content)
