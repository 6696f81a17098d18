"""Each fault of a connection, as a client sees it on the wire."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fsm_provider.testing import faults
from tests.unit.testing.wire import JOBS, SHORT, RawConnection, see, statuses


@pytest.mark.parametrize(("fault", "jobs"), [(faults.Reset(), 0), (faults.Reset(after_handling=True), 1)])
def test_a_reset_comes_without_a_byte_after_handling_or_before(service, fault, jobs):
    service.fail(*JOBS, fault)

    seen = see(service)

    assert (seen.data, seen.end) == (b"", "reset")
    assert len(service.jobs) == jobs
    assert statuses(service) == [None]


@pytest.mark.parametrize(("at", "left_out"), [(None, None), (10, None), (-1, 1)])
def test_a_truncated_response_promises_more_than_it_sends(service, at, left_out):
    service.fail(*JOBS, faults.Truncated(at))

    seen = see(service)

    promised = seen.promised
    expected = promised - left_out if left_out else promised // 2 if at is None else at
    assert (seen.status, seen.end, len(seen.body)) == (201, "closed", expected)
    assert len(service.jobs) == 1
    assert statuses(service) == [201]


def test_a_chunked_response_may_miss_its_last_chunk(service):
    service.fail(*JOBS, faults.Truncated(10, chunked=True))

    seen = see(service)

    assert (seen.header("transfer-encoding"), seen.header("content-length")) == ("chunked", None)
    assert seen.body == b'a\r\n{"id":1001\r\n'
    assert seen.end == "closed"


@pytest.mark.parametrize("after_handling", [True, False])
def test_a_stall_is_silent_after_handling_or_without(service, after_handling):
    service.fail(*JOBS, faults.Stall(after_handling=after_handling))

    seen = see(service, timeout=SHORT)

    assert (seen.data, seen.end) == (b"", "silence")
    assert len(service.jobs) == int(after_handling)
    assert statuses(service) == [None]


@pytest.mark.parametrize("at", [None, 20])
def test_a_stall_may_begin_within_the_body(service, at):
    service.fail(*JOBS, faults.Stall(headers_first=True, at=at))

    seen = see(service, timeout=SHORT)

    promised = seen.promised
    assert (seen.status, seen.end) == (201, "silence")
    assert len(seen.body) == (promised // 2 if at is None else at)
    assert len(service.jobs) == 1
    assert statuses(service) == [201]


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


@pytest.mark.parametrize("after_handling", [True, False])
@pytest.mark.parametrize("data", [b"220 mail\r\n", b""])
def test_a_malformed_response_is_these_bytes_and_no_more(service, data, after_handling):
    service.fail(*JOBS, faults.MalformedResponse(data, after_handling=after_handling))

    seen = see(service)

    assert (seen.data, seen.end) == (data, "closed")
    assert len(service.jobs) == int(after_handling)
    assert statuses(service) == [None]
