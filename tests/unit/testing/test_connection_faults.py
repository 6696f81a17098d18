"""Each fault of a connection, as a client sees it on the wire."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fsm_provider.testing import faults
from tests.unit.testing.wire import JOBS, SHORT, RawConnection, see, statuses

NO_HTTP = b"220 mail\r\n"


@pytest.mark.parametrize(
    ("fault", "end", "data", "jobs"),
    [
        (faults.Reset(), "reset", b"", 0),
        (faults.Reset(after_handling=True), "reset", b"", 1),
        (faults.Stall(), "silence", b"", 1),
        (faults.Stall(after_handling=False), "silence", b"", 0),
        (faults.MalformedResponse(NO_HTTP), "closed", NO_HTTP, 1),
        (faults.MalformedResponse(NO_HTTP, after_handling=False), "closed", NO_HTTP, 0),
        (faults.MalformedResponse(b""), "closed", b"", 1),
    ],
)
def test_what_comes_is_no_response_after_handling_or_before(service, fault, end, data, jobs):
    service.fail(*JOBS, fault)

    seen = see(service, timeout=SHORT if end == "silence" else 5)

    assert (seen.data, seen.end) == (data, end)
    assert len(service.jobs) == jobs
    assert statuses(service) == [None]


@pytest.mark.parametrize(
    ("fault", "end", "sent"),
    [
        (faults.Truncated(), "closed", lambda promised: promised // 2),
        (faults.Truncated(10), "closed", lambda promised: 10),
        (faults.Truncated(-1), "closed", lambda promised: promised - 1),
        (faults.Stall(headers_first=True), "silence", lambda promised: promised // 2),
        (faults.Stall(headers_first=True, at=20), "silence", lambda promised: 20),
    ],
)
def test_a_response_may_promise_more_than_comes(service, fault, end, sent):
    service.fail(*JOBS, fault)

    seen = see(service, timeout=SHORT if end == "silence" else 5)

    assert (seen.status, seen.end, len(seen.body)) == (201, end, sent(seen.promised))
    assert len(service.jobs) == 1
    assert statuses(service) == [201]


def test_a_chunked_response_may_miss_its_last_chunk(service):
    service.fail(*JOBS, faults.Truncated(10, chunked=True))

    seen = see(service)

    assert (seen.header("transfer-encoding"), seen.header("content-length")) == ("chunked", None)
    assert seen.body == b'a\r\n{"id":1001\r\n'
    assert seen.end == "closed"


def test_a_stall_may_end_by_itself(service):
    service.fail(*JOBS, faults.Stall(seconds=SHORT))

    seen = see(service)

    assert (seen.data, seen.end) == (b"", "closed")
    assert SHORT <= seen.seconds < 10


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
        connection.send("POST", "/properties/1/jobs")
        service.wait_for(lambda: scripted.hits, timeout=5)
        began = time.monotonic()

        service.stop()

        assert time.monotonic() - began < 10
        assert connection.see().end in ("closed", "complete")


def test_a_delay_comes_between_handling_and_the_complete_response(service):
    service.fail(*JOBS, faults.Delay(0.5))
    with RawConnection(service) as connection:
        connection.send("POST", "/properties/1/jobs")
        service.wait_for(lambda: service.jobs, timeout=5)

        assert connection.see(timeout=0.05).data == b""
        seen = connection.see()

    assert [json.loads(seen.body)] == service.jobs


def test_a_trickle_outlasts_every_single_read(call, service):
    service.fail(*JOBS, faults.Trickle(1.0, chunks=10))
    began = time.monotonic()

    response = call.session.post(f"{service.base_url}/properties/1/jobs", json={}, timeout=0.5)

    assert time.monotonic() - began >= 0.9
    assert [response.json()] == service.jobs
    assert call("GET", "/forms").status_code == 200
    assert len({request.connection for request in service.requests}) == 1
