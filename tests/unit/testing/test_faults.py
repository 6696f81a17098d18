"""Each fault, as a client sees it on the wire."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
import requests

from fsm_provider.testing import faults
from tests.unit.testing.wire import RawConnection, see

JOBS = ("POST", "/properties/*/jobs")
SHORT = 0.3
"""Seconds of silence that pass for a connection left open."""


@pytest.fixture
def service(call, caplog):
    """A service that must not complain in its log."""
    yield call.service
    call.service.stop()
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record for record in complaints if record.name.startswith(("uvicorn", "asyncio"))] == []


def statuses(service):
    return [request.status for request in service.requests]


# Whole answers


@pytest.mark.parametrize(
    ("body", "content_type", "sent", "sent_as"),
    [
        (b"", None, b"", None),
        (b"\xff\x00", None, b"\xff\x00", None),
        ("später", None, "später".encode(), "text/plain; charset=utf-8"),
        ("<html>", "text/html", b"<html>", "text/html"),
        ({"error": "é"}, None, '{"error": "é"}'.encode(), "application/json"),
        ([], "application/problem+json", b"[]", "application/problem+json"),
        (None, None, b"null", "application/json"),
    ],
)
def test_a_status_answers_instead_of_handling(service, body, content_type, sent, sent_as):
    service.fail(*JOBS, faults.Status(503, body, content_type=content_type, headers={"X-Request-ID": "r1"}))

    seen = see(service)

    assert (seen.status, seen.body, seen.end) == (503, sent, "complete")
    assert seen.header("content-type") == sent_as
    assert seen.header("content-length") == str(len(sent))
    assert seen.header("x-request-id") == "r1"
    assert seen.header("retry-after") is None
    assert service.jobs == []
    assert statuses(service) == [503]


@pytest.mark.parametrize(
    ("retry_after", "sent"),
    [
        (30, "30"),
        (0.5, "0.5"),
        (0, "0"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "Fri, 02 Jan 2026 03:04:05 GMT"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), "Fri, 02 Jan 2026 01:00:00 GMT"),
        (-1, "-1"),
        ("soon", "soon"),
        ("99999999999999999999", "99999999999999999999"),
    ],
)
def test_a_status_may_say_when_to_come_back(service, retry_after, sent):
    service.fail(*JOBS, faults.Status(429, retry_after=retry_after))

    assert see(service).header("retry-after") == sent


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_has_no_length_either(call, service, status):
    service.fail("*", "*", faults.Status(status))

    response = call("GET", "/forms")

    assert (response.status_code, response.headers.get("content-length")) == (status, None)
    assert call("GET", "/forms").status_code == 200


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"status": 600}, "status"),
        ({"status": 100}, "status"),
        ({"status": 204, "body": "x"}, "204"),
        ({"status": 429, "retry_after": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_a_status_that_cannot_be_sent_is_refused_at_once(wrong, named):
    with pytest.raises(ValueError, match=named):
        faults.Status(**wrong)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_to_itself_or_elsewhere(call, service, status):
    service.fail(*JOBS, faults.Redirect(status=status))
    service.fail(*JOBS, faults.Redirect("http://other.test/x", status=status), call=2)

    path = "/properties/1/jobs?a=b"
    itself = call("POST", path, json={}, allow_redirects=False)
    elsewhere = call("POST", path, json={}, allow_redirects=False)

    assert (itself.status_code, itself.headers["location"]) == (status, service.base_url + path)
    assert (elsewhere.status_code, elsewhere.headers["location"]) == (status, "http://other.test/x")
    assert service.jobs == []


def test_a_redirect_to_itself_has_no_end(call, service):
    service.fail("GET", "/forms", faults.Redirect(), every=True)

    with pytest.raises(requests.TooManyRedirects):
        call("GET", "/forms")


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ("", b""),
        ('{"id": 1', b'{"id": 1'),
        ("<html>", b"<html>"),
        (b"\xff", b"\xff"),
        ([{"id": 1}], b'[{"id": 1}]'),
        (None, b"null"),
        ({}, b"{}"),
    ],
)
def test_a_body_replaces_that_of_a_job_which_is_stored(service, body, sent):
    service.fail(*JOBS, faults.Body(body))

    seen = see(service)

    assert (seen.status, seen.body) == (201, sent)
    assert seen.header("content-length") == str(len(sent))
    assert seen.header("content-type") == "application/json"
    assert len(service.jobs) == 1
    assert statuses(service) == [201]


def test_a_body_may_have_another_type_and_headers(call, service):
    service.fail("GET", "/forms", faults.Body("plain", "text/html", headers={"Content-Encoding": "gzip"}))

    with pytest.raises(requests.exceptions.ContentDecodingError):
        call("GET", "/forms")
    assert statuses(service) == [200]


def test_the_right_body_under_a_wrong_type_or_none(call, service):
    service.fail(*JOBS, faults.WrongContentType())
    service.fail(*JOBS, faults.WrongContentType(None), call=2)

    plain, untyped = (call("POST", "/properties/1/jobs", json={}) for _ in range(2))

    assert (plain.status_code, plain.headers["content-type"]) == (201, "text/plain")
    assert (untyped.status_code, untyped.headers.get("content-type")) == (201, None)
    assert [plain.json(), untyped.json()] == service.jobs


def test_gzip_compresses_the_right_answer(service):
    service.fail(*JOBS, faults.Gzip())

    seen = see(service)

    assert seen.header("content-encoding") == "gzip"
    assert seen.header("content-length") == str(len(seen.body))
    assert [json.loads(gzip.decompress(seen.body))] == service.jobs


def test_a_right_answer_can_be_rewritten(call, service):
    service.seed_forms(2)
    service.fail("GET", "/forms", faults.Rewrite(lambda page: {**page, "data": page["data"][::-1]}))

    response = call("GET", "/forms")

    assert response.json()["data"] == service.forms[::-1]
    assert int(response.headers["content-length"]) == len(response.content)


def test_an_answer_that_is_no_success_is_not_rewritten(call, service):
    service.fail("GET", "/forms", faults.Rewrite(lambda page: page["data"]))

    assert call("GET", "/forms", params={"cursor": "unknown"}).status_code == 409


# Connections


def test_a_reset_comes_before_handling_and_without_a_byte(service):
    service.fail(*JOBS, faults.Reset())

    seen = see(service)

    assert (seen.data, seen.end) == (b"", "reset")
    assert service.jobs == []
    assert statuses(service) == [None]


def test_a_reset_after_handling_leaves_the_job_stored(service):
    service.fail(*JOBS, faults.Reset(after_handling=True))

    seen = see(service)

    assert (seen.data, seen.end) == (b"", "reset")
    assert len(service.jobs) == 1
    assert statuses(service) == [None]


def test_a_reset_may_hit_a_kept_alive_connection(call, service):
    call("GET", "/forms")
    service.fail("GET", "/forms", faults.Reset())

    with pytest.raises(requests.ConnectionError, match="reset by peer"):
        call("GET", "/forms")
    assert call("GET", "/forms").status_code == 200


@pytest.mark.parametrize(("at", "left_out"), [(None, None), (0, None), (10, None), (-1, 1)])
def test_a_truncated_answer_promises_more_than_it_sends(service, at, left_out):
    service.fail(*JOBS, faults.Truncated(at))

    seen = see(service)

    promised = seen.promised
    expected = promised - left_out if left_out else promised // 2 if at is None else at
    assert (seen.status, seen.end, len(seen.body)) == (201, "closed", expected)
    assert len(service.jobs) == 1
    assert statuses(service) == [201]


def test_a_chunked_answer_may_miss_its_last_chunk(service):
    service.fail(*JOBS, faults.Truncated(10, chunked=True))

    seen = see(service)

    assert (seen.header("transfer-encoding"), seen.header("content-length")) == ("chunked", None)
    assert seen.body == b'a\r\n{"id":1001\r\n'
    assert seen.end == "closed"


@pytest.mark.parametrize("after_handling", [True, False])
def test_a_stall_is_silent_after_handling_or_without(service, after_handling):
    service.fail(*JOBS, faults.Stall(after_handling=after_handling))

    seen = see(service, patience=SHORT)

    assert (seen.data, seen.end) == (b"", "silence")
    assert len(service.jobs) == int(after_handling)
    assert statuses(service) == [None]


@pytest.mark.parametrize("at", [None, 0, 20])
def test_a_stall_may_begin_within_the_body(service, at):
    service.fail(*JOBS, faults.Stall(headers_first=True, at=at))

    seen = see(service, patience=SHORT)

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


def test_a_stall_with_headers_but_without_handling_makes_no_sense():
    with pytest.raises(ValueError, match="headers_first"):
        faults.Stall(headers_first=True, after_handling=False)


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


def test_a_stalled_connection_does_not_hold_up_others(call, service):
    service.fail(*JOBS, faults.Stall())
    with RawConnection(service) as connection:
        connection.send("POST", "/properties/1/jobs")
        service.wait_for(lambda: service.requests, timeout=5)

        assert call("POST", "/properties/2/jobs", json={}).status_code == 201


def test_a_delay_comes_between_handling_and_the_whole_answer(service):
    service.fail(*JOBS, faults.Delay(2))
    with RawConnection(service) as connection:
        connection.send("POST", "/properties/1/jobs")
        service.wait_for(lambda: service.jobs, timeout=5)

        assert connection.see(patience=0.05).data == b""
        seen = connection.see()

    assert [json.loads(seen.body)] == service.jobs


def test_a_trickle_outlasts_every_single_read(call, service):
    service.fail(*JOBS, faults.Trickle(1.0, pieces=10))
    began = time.monotonic()

    answer = call.session.post(f"{service.base_url}/properties/1/jobs", json={}, timeout=0.5)

    assert time.monotonic() - began >= 0.9
    assert [answer.json()] == service.jobs
    assert call("GET", "/forms").status_code == 200
    assert len({request.connection for request in service.requests}) == 1


@pytest.mark.parametrize("after_handling", [True, False])
@pytest.mark.parametrize(
    "data", [b"220 mail\r\n", b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.1 abc\r\n\r\n", b""]
)
def test_a_malformed_response_is_these_bytes_and_no_more(service, data, after_handling):
    service.fail(*JOBS, faults.MalformedResponse(data, after_handling=after_handling))

    seen = see(service)

    assert (seen.data, seen.end) == (data, "closed")
    assert len(service.jobs) == int(after_handling)
    assert statuses(service) == [None]


# Outages


def test_connections_are_refused_for_a_while_and_the_service_comes_back_as_it_was(call, service):
    call("POST", "/properties/1/jobs", json={})
    address = service.base_url

    for _ in range(2):
        with service.refuse_connections():
            for _ in range(3):
                with pytest.raises(ConnectionRefusedError):
                    RawConnection(service)
            with pytest.raises(requests.ConnectionError, match="refused"):
                call("GET", "/forms")
        assert call("POST", "/properties/1/jobs", json={}).status_code == 201

    assert service.base_url == address
    assert len(service.jobs) == len(service.requests) == 3


def test_a_refusing_service_closes_idle_connections_and_answers_what_is_under_way(service):
    held = threading.Event()
    scripted = service.fail(*JOBS, faults.Before(held.wait))
    with RawConnection(service) as idle, RawConnection(service) as busy:
        idle.send("GET", "/forms")
        assert idle.see().status == 200
        busy.send("POST", "/properties/1/jobs")
        service.wait_for(lambda: scripted.hits, timeout=5)

        with service.refuse_connections():
            closed = idle.see()
            held.set()
            answered = busy.see()

    assert (closed.data, closed.end) == (b"", "closed")
    assert (answered.status, answered.end) == (201, "complete")


def test_a_service_that_refuses_connections_can_be_stopped_and_started(call, service):
    with service.refuse_connections():
        service.stop()
        service.start()
        assert call("GET", "/forms").status_code == 200

    assert call("GET", "/forms").status_code == 200


def test_connections_are_reset_before_a_request_is_read(service):
    with service.reset_connections() as was_reset:
        for _ in range(2):
            with RawConnection(service) as connection:
                assert connection.see(patience=0.05).end == "silence"
                connection.socket.sendall(b"P")
                assert connection.see().end == "reset"

    assert len(set(was_reset)) == 2
    assert service.requests == []
    assert see(service).status == 201


def test_connections_may_be_reset_as_soon_as_they_are_accepted(service):
    with service.reset_connections(at_accept=True) as was_reset:
        for _ in range(20):
            try:
                with RawConnection(service) as connection:
                    assert connection.see().end == "reset"
            except ConnectionResetError:
                pass

    assert len(set(was_reset)) == 20
    assert service.requests == []


def test_so_many_connections_are_reset(call, service):
    with service.reset_connections(1) as was_reset:
        with pytest.raises(requests.ConnectionError):
            call("GET", "/forms")
        assert call("GET", "/forms").status_code == 200

    assert len(was_reset) == len(service.requests) == 1


def test_a_kept_alive_connection_is_reset_at_its_next_request(service):
    with RawConnection(service) as connection:
        connection.send("GET", "/forms")
        assert connection.see().status == 200

        with service.reset_connections():
            assert connection.see(patience=SHORT).end == "silence"
            connection.send("POST", "/properties/1/jobs")
            assert connection.see().end == "reset"

    assert service.jobs == []


@pytest.mark.parametrize("outage", ["refuse_connections", "reset_connections"])
def test_a_service_that_does_not_run_has_no_outages(service, outage):
    service.stop()

    with pytest.raises(RuntimeError, match="start"), getattr(service, outage)():
        pass


def test_a_client_that_leaves_in_the_middle_is_no_trouble(service):
    service.fail(*JOBS, faults.Delay(SHORT))
    service.fail(*JOBS, faults.Trickle(SHORT), call=2)
    for _ in range(2):
        with RawConnection(service) as connection:
            connection.send("POST", "/properties/1/jobs")
    with RawConnection(service) as connection:
        connection.socket.sendall(
            b"POST /properties/1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"
        )
    service.wait_for(lambda: len(service.jobs) == 2, timeout=5)
    time.sleep(2 * SHORT)

    assert len(service.requests) == 2


# What happens meanwhile, and one's own faults


def test_a_function_may_be_called_before_a_request_is_handled(call, service):
    service.seed_forms(1)
    service.fail("GET", "/forms", faults.Before(service.add_form))

    assert len(call("GET", "/forms").json()["data"]) == 2
    assert len(call("GET", "/forms").json()["data"]) == 2


def test_a_function_may_send_requests_itself_and_be_followed_by_a_fault(call, service):
    def meanwhile():
        assert see(service).status == 201

    service.fail("GET", "/forms", faults.Before(meanwhile, then=faults.Status(503)))

    assert call("GET", "/forms").status_code == 503
    assert len(service.jobs) == 1


class Teapot:
    async def play(self, exchange):
        right = await exchange.handle()
        await exchange.answer(faults.Answer(418, right.body))


def test_a_fault_may_be_ones_own(call, service):
    service.fail(*JOBS, Teapot())

    response = call("POST", "/properties/1/jobs", json={})

    assert (response.status_code, [response.json()]) == (418, service.jobs)


@pytest.mark.parametrize(
    "fault", [faults.Rewrite(lambda page: page["nothing"]), faults.Before(lambda: 1 / 0)]
)
def test_a_fault_that_fails_itself_is_answered_500_and_logged(call, caplog, fault):
    call.service.fail("GET", "/forms", fault)

    assert call("GET", "/forms").status_code == 500
    assert statuses(call.service) == [500]
    assert "Error" in caplog.text


# The script


def failed(call, count):
    """List the forms so often and return which calls failed, counted from 1."""
    return [n for n in range(1, count + 1) if call("GET", "/forms").status_code == 503]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ({}, [1]),
        ({"call": 1}, [1]),
        ({"call": 3}, [3]),
        ({"calls": (1, 4)}, [1, 4]),
        ({"calls": range(2, 4)}, [2, 3]),
        ({"calls": ()}, []),
        ({"every": True}, [1, 2, 3, 4, 5]),
    ],
)
def test_only_the_calls_named_fail(call, service, calls, expected):
    scripted = service.fail("GET", "/forms", faults.Status(503), **calls)

    assert failed(call, 5) == expected
    assert scripted.hits == len(expected)


def test_calls_are_counted_from_now_on(call, service):
    failed(call, 2)
    service.fail("GET", "/forms", faults.Status(503), call=2)

    assert failed(call, 3) == [2]


def test_only_matching_requests_are_counted_and_fail(call, service):
    service.fail(*JOBS, faults.Status(503), call=2)

    assert call("POST", "/properties/1/jobs", json={}).status_code == 201
    assert failed(call, 3) == []
    assert call("POST", "/settings/webhooks").status_code == 409
    assert call("POST", "/properties/22/jobs", json={}).status_code == 503
    assert [job["propertyID"] for job in service.jobs] == [1]


def test_a_star_is_any_method_and_any_path(call, service):
    service.fail("*", "*", faults.Status(503), calls=(1, 2))

    assert call("POST", "/properties/1/jobs", json={}).status_code == 503
    assert call("GET", "/no/such/path").status_code == 503
    assert call("GET", "/forms").status_code == 200
    assert len(service.requests_to("*", "*")) == 3


def test_paths_are_relative_to_the_base_path(serve):
    call = serve(base_path="/api/v2")
    call.service.fail("GET", "/forms", faults.Status(503))

    assert failed(call, 2) == [1]


def test_a_request_fails_whether_or_not_it_is_authorised(call, service):
    service.fail("GET", "/forms", faults.Status(503))

    assert call("GET", "/forms", headers={"Authorization": "Bearer wrong"}).status_code == 503


def test_the_fault_scripted_last_goes_first_and_every_fault_counts(call, service):
    service.fail("GET", "/forms", faults.Status(502), every=True)
    service.fail("GET", "/forms", faults.Status(503), calls=(2, 3))
    service.fail("GET", "/forms", faults.RightAnswer(), call=3)

    assert [call("GET", "/forms").status_code for _ in range(4)] == [502, 503, 200, 502]


def test_faults_can_be_cleared(call, service):
    service.fail("GET", "/forms", faults.Status(503), every=True)
    assert failed(call, 1) == [1]

    service.clear_faults()

    assert failed(call, 2) == []


def test_concurrent_calls_are_counted_one_by_one(service):
    service.fail(*JOBS, faults.Reset(after_handling=True), calls=range(1, 11))
    ends = []
    clients = [threading.Thread(target=lambda: ends.append(see(service).end)) for _ in range(20)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()

    assert sorted(ends) == ["complete"] * 10 + ["reset"] * 10
    assert len(service.jobs) == 20


@pytest.mark.parametrize(
    ("calls", "named"),
    [({"call": 0}, "from 1"), ({"call": 1, "every": True}, "one of"), ({"call": 1, "calls": (2,)}, "one of")],
)
def test_calls_that_make_no_sense_are_refused(service, calls, named):
    with pytest.raises(ValueError, match=named):
        service.fail("GET", "/forms", faults.Status(503), **calls)


def test_the_class_of_a_fault_is_no_fault(service):
    with pytest.raises(TypeError, match="Reset"):
        service.fail("GET", "/forms", faults.Reset)
