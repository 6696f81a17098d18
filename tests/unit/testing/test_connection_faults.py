"""Each fault of a connection, as a client sees it on the wire."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fsm_provider.testing import faults
from tests.unit.testing.raw_connection import (
    JOBS,
    SHORT,
    RawConnection,
    create_job,
    recorded_statuses,
)

NO_HTTP = b"220 mail\r\n"


@pytest.mark.parametrize(
    ("fault", "timeout", "end", "data", "jobs"),
    [
        (faults.Reset(), 5, "reset", b"", 0),
        (faults.Reset(after_handling=True), 5, "reset", b"", 1),
        (faults.Stall(), SHORT, "silence", b"", 1),
        (faults.Stall(after_handling=False), SHORT, "silence", b"", 0),
        (faults.MalformedResponse(NO_HTTP), 5, "closed", NO_HTTP, 1),
        (faults.MalformedResponse(NO_HTTP, after_handling=False), 5, "closed", NO_HTTP, 0),
        (faults.MalformedResponse(b""), 5, "closed", b"", 1),
    ],
)
def test_what_comes_is_no_response_after_handling_or_before(
    service, fault, timeout, end, data, jobs
):
    service.fail(*JOBS, fault)

    received = create_job(service, timeout=timeout)

    assert received.data == data
    assert received.end == end
    assert len(service.jobs) == jobs
    assert recorded_statuses(service) == [None]


@pytest.mark.parametrize(
    ("fault", "timeout", "end", "sent"),
    [
        (faults.Truncated(), 5, "closed", lambda promised: promised // 2),
        (faults.Truncated(10), 5, "closed", lambda promised: 10),
        (faults.Truncated(-1), 5, "closed", lambda promised: promised - 1),
        (faults.Stall(headers_first=True), SHORT, "silence", lambda promised: promised // 2),
        (faults.Stall(headers_first=True, at=20), SHORT, "silence", lambda promised: 20),
    ],
)
def test_a_response_may_promise_more_than_comes(service, fault, timeout, end, sent):
    service.fail(*JOBS, fault)

    response = create_job(service, timeout=timeout)

    assert response.status == 201
    assert response.end == end
    assert len(response.body) == sent(response.promised)
    assert len(service.jobs) == 1
    assert recorded_statuses(service) == [201]


def test_a_chunked_response_may_miss_its_last_chunk(service):
    service.fail(*JOBS, faults.Truncated(10, chunked=True))

    response = create_job(service)

    assert response.header("transfer-encoding") == "chunked"
    assert response.header("content-length") is None
    assert response.body == b'a\r\n{"id":1001\r\n'
    assert response.end == "closed"


def test_a_stall_may_end_by_itself(service):
    service.fail(*JOBS, faults.Stall(seconds=SHORT))

    received = create_job(service)

    assert received.data == b""
    assert received.end == "closed"
    assert SHORT <= received.seconds < 10


@pytest.mark.parametrize(
    "fault",
    [
        faults.Stall(),
        faults.Stall(headers_first=True),
        faults.Delay(60),
        faults.Trickle(60),
        faults.Before(threading.Event().wait),
    ],
)
def test_whatever_takes_long_ends_when_the_service_stops(service, fault):
    scripted = service.fail(*JOBS, fault)
    with RawConnection(service) as connection:
        connection.send_job()
        service.wait_for(lambda: scripted.hits, timeout=5)
        began = time.monotonic()

        service.stop()

        assert time.monotonic() - began < 10
        assert connection.receive().end in ("closed", "complete")


def test_a_delay_comes_between_handling_and_the_complete_response(service):
    service.fail(*JOBS, faults.Delay(0.5))
    with RawConnection(service) as connection:
        connection.send_job()
        service.wait_for(lambda: service.jobs, timeout=5)

        assert connection.receive(timeout=0.05).data == b""
        response = connection.receive()

    [job] = service.jobs
    assert json.loads(response.body) == job


def test_a_trickle_outlasts_every_single_read(call, service):
    service.fail(*JOBS, faults.Trickle(1.0, chunks=10))
    began = time.monotonic()

    response = call.session.post(f"{service.base_url}/properties/1/jobs", json={}, timeout=0.5)

    assert time.monotonic() - began >= 0.9
    assert [response.json()] == service.jobs
    assert call("GET", "/forms").status_code == 200
    assert len({request.connection for request in service.requests}) == 1
