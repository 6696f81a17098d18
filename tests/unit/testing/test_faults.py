"""Each fault that answers, and a fault of one's own, as a client sees it on the wire."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta, timezone

import pytest

from fsm_provider.testing import faults
from tests.unit.testing.raw_connection import JOBS, create_job, recorded_statuses


@pytest.mark.parametrize(
    ("body", "content_type", "sent", "sent_type"),
    [
        (b"\xff\x00", None, b"\xff\x00", None),
        ("später", None, "später".encode(), "text/plain; charset=utf-8"),
        ("<html>", "text/html", b"<html>", "text/html"),
        ({"error": "é"}, None, '{"error": "é"}'.encode(), "application/json"),
        (None, None, b"null", "application/json"),
    ],
)
def test_a_status_is_sent_instead_of_handling(service, body, content_type, sent, sent_type):
    status = faults.Status(
        503,
        body,
        content_type=content_type,
        headers={"X-Request-ID": "r1"},
    )
    service.fail(*JOBS, status)

    response = create_job(service)

    assert response.status == 503
    assert response.body == sent
    assert response.end == "complete"
    assert response.header("content-type") == sent_type
    assert response.header("content-length") == str(len(sent))
    assert response.header("x-request-id") == "r1"
    assert response.header("retry-after") is None
    assert service.jobs == []
    assert recorded_statuses(service) == [503]


AN_AWARE_TIME = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("retry_after", "sent"),
    [
        (30, "30"),
        (0.5, "0.5"),
        (AN_AWARE_TIME, "Fri, 02 Jan 2026 01:00:00 GMT"),
        ("soon", "soon"),
    ],
)
def test_a_status_may_say_when_to_come_back(service, retry_after, sent):
    service.fail(*JOBS, faults.Status(429, retry_after=retry_after))

    response = create_job(service)

    assert response.header("retry-after") == sent


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"status": 600}, "status"),
        ({"status": 204, "body": "x"}, "204"),
        ({"status": 429, "retry_after": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_a_status_that_cannot_be_sent_is_refused_at_once(wrong, named):
    with pytest.raises(ValueError, match=named):
        faults.Status(**wrong)


def test_the_right_body_under_a_wrong_type_or_none(call, service):
    service.fail(*JOBS, faults.WrongContentType())
    service.fail(*JOBS, faults.WrongContentType(None), call=2)

    plain = call.create_job(1)
    untyped = call.create_job(1)

    assert plain.status_code == 201
    assert plain.headers["content-type"] == "text/plain"
    assert untyped.status_code == 201
    assert untyped.headers.get("content-type") is None
    assert [plain.json(), untyped.json()] == service.jobs


def test_gzip_compresses_the_correct_response(service):
    service.fail(*JOBS, faults.Gzip())

    response = create_job(service)

    assert response.header("content-encoding") == "gzip"
    assert response.header("content-length") == str(len(response.body))
    [job] = service.jobs
    assert json.loads(gzip.decompress(response.body)) == job


def test_a_function_may_send_requests_itself_and_be_followed_by_a_fault(call, service):
    def create_job_meanwhile():
        assert create_job(service).status == 201

    fault = faults.Before(create_job_meanwhile, then=faults.Status(503))
    service.fail("GET", "/forms", fault)

    assert call("GET", "/forms").status_code == 503
    assert len(service.jobs) == 1


@pytest.mark.parametrize(
    "fault",
    [
        faults.Rewrite(lambda page: page["nothing"]),
        faults.Before(lambda: 1 / 0),
    ],
)
def test_a_fault_that_fails_itself_returns_500_and_is_logged(call, caplog, fault):
    call.service.fail("GET", "/forms", fault)

    assert call("GET", "/forms").status_code == 500
    assert recorded_statuses(call.service) == [500]
    assert "Error" in caplog.text
