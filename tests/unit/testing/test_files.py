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
    page = call("GET", "/forms").json()
    return page["data"][0]["formPDFURL"]


def test_the_service_lists_the_urls_of_the_other_host_while_it_runs(call, form):
    with FakeFileHost(call.service):
        url = listed_url(call)
        response = requests.get(url, timeout=5)

    assert url.startswith("http://localhost:")
    own_response = call("GET", f"/forms/{form['id']}/pdf")
    assert response.content == own_response.content == call.service.pdf(form["id"])
    assert listed_url(call) == form["formPDFURL"]


def test_a_url_expires_and_the_next_listing_has_another(call, form):
    with FakeFileHost(call.service, lifetime=0.05) as files:
        first_url = listed_url(call)
        time.sleep(0.1)
        refused = requests.get(first_url, timeout=5)
        files.lifetime = 60
        accepted = requests.get(listed_url(call), timeout=5)

    assert refused.status_code == 403
    assert first_url in refused.json()["detail"]
    assert accepted.status_code == 200


def test_the_other_host_records_the_headers_it_was_sent(call, form):
    with FakeFileHost(call.service) as files:
        call.session.get(listed_url(call), timeout=5)

    [request] = files.requests
    assert request.headers["authorization"] == "Bearer ***"
