from __future__ import annotations

from datetime import UTC, datetime

import pytest
import requests

ENDPOINTS = [
    ("GET", "/assetDynamicFieldValues"),
    ("POST", "/properties/1/jobs"),
    ("GET", "/forms"),
    ("POST", "/settings/webhooks"),
]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_a_forbidden_token_returns_403(serve, method, path):
    call = serve(forbidden_tokens=["reader"])

    response = call(method, path, headers={"Authorization": "Bearer reader"})

    assert response.status_code == 403
    assert response.json() == {"detail": "Forbidden"}


@pytest.mark.parametrize("path", ["/", "/jobs/", "/forms/", "/docs", "/openapi.json"])
def test_an_unknown_path_returns_404_in_json(call, path):
    response = call("GET", path, allow_redirects=False)

    assert response.status_code == 404
    assert response.json() == {"detail": "Not Found"}


def test_a_request_is_recorded_as_it_was_sent(call):
    before = datetime.now(UTC)
    path = "/properties/7/jobs?a=1&b=%5B&a=2"

    call("POST", path, json={"notes": "n"}, headers={"X-API-VERSION": "2.0"})

    [request] = call.service.requests
    assert request.method == "POST"
    assert request.path == "/properties/7/jobs"
    assert request.status == 201
    assert request.query == (("a", "1"), ("b", "["), ("a", "2"))
    assert request.json == {"notes": "n"}
    assert request.headers["x-api-version"] == "2.0"
    assert request.connection[0] == "127.0.0.1"
    assert before <= request.at <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("sent", "recorded"),
    [
        ("Bearer fake-token", "Bearer ***"),
        ("Bearer other", "***"),
        ("Basic abc", "***"),
    ],
)
def test_a_recorded_request_says_whether_the_token_was_right_but_not_what_it_was(
    call, sent, recorded
):
    call("GET", "/forms", headers={"Authorization": sent})

    assert call.service.requests[0].headers["authorization"] == recorded
    assert sent not in repr(call.service.requests)


def test_requests_can_be_selected_and_forgotten(call):
    call.create_job(7)
    call("GET", "/forms")

    [selected] = call.service.requests_to("POST", "/properties/*/jobs")
    assert selected.path == "/properties/7/jobs"
    assert call.service.requests_to("GET", "/properties/*/jobs") == []
    call.service.clear_requests()
    assert call.service.requests == []


def test_latency_delays_the_response_but_not_the_handling(serve):
    call = serve(latency=30)
    url = f"{call.service.base_url}/properties/1/jobs"

    with pytest.raises(requests.ReadTimeout):
        call.session.post(url, json={}, timeout=(5, 0.2))

    call.service.wait_for(lambda: call.service.jobs and call.service.requests, timeout=5)
    assert len(call.service.jobs) == 1
    assert len(call.service.requests) == 1
