"""The fake serves the PDFs of forms, at its own or at another host."""

from __future__ import annotations

import time

import pytest
import requests

from fsm_provider.testing import FakeFileHost


@pytest.fixture
def form(call):
    return call.service.add_form()


def listed_url(call):
    return call("GET", "/forms").json()["data"][0]["formPDFURL"]


def test_the_service_lists_the_urls_of_the_other_host_while_it_runs(call, form):
    with FakeFileHost(call.service):
        url = listed_url(call)
        response = requests.get(url, timeout=5)

    assert url.startswith("http://localhost:")
    assert (
        response.content
        == call("GET", f"/forms/{form['id']}/pdf").content
        == call.service.pdf(form["id"])
    )
    assert listed_url(call) == form["formPDFURL"]


def test_a_url_expires_and_the_next_listing_has_another(call, form):
    with FakeFileHost(call.service, lifetime=0.05) as files:
        first = listed_url(call)
        time.sleep(0.1)
        refused = requests.get(first, timeout=5)
        files.lifetime = 60
        again = requests.get(listed_url(call), timeout=5)

    assert (refused.status_code, again.status_code) == (403, 200)
    assert first in refused.json()["detail"]


def test_the_other_host_records_the_headers_it_was_sent(call, form):
    with FakeFileHost(call.service) as files:
        call.session.get(listed_url(call), timeout=5)

    assert [request.headers["authorization"] for request in files.requests] == ["Bearer ***"]
