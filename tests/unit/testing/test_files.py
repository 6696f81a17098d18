"""Where the fake keeps the PDFs of forms, and what it makes of them."""

from __future__ import annotations

import time

import pytest
import requests

from fsm_provider.testing import FakeFileHost, faults


@pytest.fixture
def form(call):
    return call.service.add_form()


def listed_address(call):
    return call("GET", "/forms").json()["data"][0]["formPDFURL"]


def test_the_service_lists_the_addresses_of_the_other_host_while_it_runs(call, form):
    with FakeFileHost(call.service):
        address = listed_address(call)
        answer = requests.get(address, timeout=5)

    assert address.startswith("http://localhost:")
    assert answer.content == call("GET", f"/forms/{form['id']}/pdf").content == call.service.pdf(form["id"])
    assert listed_address(call) == form["formPDFURL"]


def test_an_address_expires_and_the_next_listing_has_another(call, form):
    with FakeFileHost(call.service, lifetime=0.05) as files:
        first = listed_address(call)
        time.sleep(0.1)
        refused = requests.get(first, timeout=5)
        files.lifetime = 60
        again = requests.get(listed_address(call), timeout=5)

    assert (refused.status_code, again.status_code) == (403, 200)
    assert first in refused.json()["detail"]


def test_an_address_with_another_signature_is_refused(call, form):
    with FakeFileHost(call.service):
        address = listed_address(call)
        assert requests.get(f"{address[:-1]}x", timeout=5).status_code == 403


def test_the_other_host_records_the_headers_it_was_sent(call, form):
    with FakeFileHost(call.service) as files:
        call.session.get(listed_address(call), timeout=5)

    assert [request.headers["authorization"] for request in files.requests] == ["Bearer ***"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_answer_begins_as_the_right_one(call, form, chunked):
    right = call("GET", f"/forms/{form['id']}/pdf").content
    call.service.fail("GET", "/forms/*/pdf", faults.Huge(100_000, chunked=chunked))

    answer = call("GET", f"/forms/{form['id']}/pdf")

    assert answer.content == right.ljust(100_000)
    assert ("content-length" in answer.headers) is not chunked
