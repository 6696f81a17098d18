"""Unusual or invalid HTTP: a job is never mistaken for another, and never created twice."""

import json
import resource
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from fsm_provider.api import (
    FsmApiError,
    FsmClient,
    FsmConnectionError,
    FsmError,
    FsmForbiddenError,
    FsmInputError,
    FsmResponseError,
    FsmUncertainWriteError,
    Settings,
    connections,
)
from tests.unit.api.raw_server import RawServer, Request, http
from tests.unit.conftest import TOKEN

EMPTY_PAGE = {"pagination": {"hasMore": False}, "data": []}
INTERIM = {
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "102": b"HTTP/1.1 102 Processing\r\n\r\n",
    "103 with headers": (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nContent-Length: 7\r\n\r\n"
    ),
    "199": b"HTTP/1.1 199 Whatever\r\n\r\n",
    "several": (
        b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    ),
}
ELSEWHERE = "Location: /elsewhere"
NO_RESPONSE_TO_A_WRITE = {
    "300": http(300, b"", ELSEWHERE),
    "301": http(301, b"", ELSEWHERE),
    "302": http(302, b"", ELSEWHERE),
    "303": http(303, b"", ELSEWHERE),
    "304": http(304, b"", ELSEWHERE),
    "307": http(307, b"", ELSEWHERE),
    "303 with a job": http(303, {"id": 77, "propertyID": 7}, "Location: /jobs/77"),
    "408": http(408),
    "408 with a job": http(408, {"id": 77, "propertyID": 7}),
    "444": http(444),
    "460": http(460),
    "499": http(499),
    "600": http(600),
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "endless interim responses": INTERIM["102"] * 300,
    "endless continues": INTERIM["100"] * 300,
}


def job(number: int, **fields: object) -> bytes:
    return http(201, {"id": number, "propertyID": 7, **fields})


def end(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


Respond = Callable[[socket.socket, Request, int], None]


def send_always(response: bytes) -> Respond:
    def respond(connection: socket.socket, request: Request, number: int) -> None:
        connection.sendall(response)

    return respond


def send_once(first: bytes, *, then: bytes) -> Respond:
    """Send a response to the first request, and another one to each later request."""

    def respond(connection: socket.socket, request: Request, number: int) -> None:
        connection.sendall(first if number == 1 else then)

    return respond


def send_numbered_jobs(connection: socket.socket, request: Request, number: int) -> None:
    connection.sendall(job(number))


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    running: list[RawServer] = []

    def start(respond: Respond, **options) -> RawServer:
        server = RawServer(respond, **options)
        running.append(server)
        return server.__enter__()

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def connect(certificate) -> Iterator[Callable[..., FsmClient]]:
    made: list[FsmClient] = []

    def client_for(server: RawServer, *, sleep=lambda _: None, **settings) -> FsmClient:
        values = {
            "base_url": server.base_url,
            "token": TOKEN,
            "timeout": 2,
            "max_retries": 1,
            **settings,
        }
        if values["base_url"].startswith("https://127.0.0.1"):
            values.setdefault("ca_bundle", str(certificate))
        client = FsmClient(Settings.parse(values), sleep=sleep)
        made.append(client)
        return client

    yield client_for
    for client in made:
        client.close()


@pytest.mark.parametrize("interim", INTERIM.values(), ids=INTERIM)
@pytest.mark.parametrize("pause", [0, 0.05], ids=["at once", "apart"])
def test_each_job_has_its_own_id_behind_interim_responses(serve, connect, interim, pause):
    def respond(connection, request, number):
        connection.sendall(interim)
        time.sleep(pause)
        connection.sendall(job(100 + number))

    client = connect(serve(respond))

    assert client.create_job(7, {}).id == 101
    assert client.create_job(7, {}).id == 102
    assert client.create_job(7, {}).id == 103


def assert_first_write_is_uncertain(server, client, method):
    """Check that the second one goes over another connection and is certain."""
    with pytest.raises(FsmUncertainWriteError):
        client.request(method, "/properties/7/jobs", json={"customerReference": "PO-1"})
    assert len(server.requests) == 1
    assert client.create_job(7, {}).id == 5
    assert server.requests[1].connection == 2


@pytest.mark.parametrize(
    "odd_response", NO_RESPONSE_TO_A_WRITE.values(), ids=NO_RESPONSE_TO_A_WRITE
)
def test_a_write_without_a_real_response_is_uncertain_and_its_connection_dropped(
    serve, connect, odd_response
):
    server = serve(send_once(odd_response, then=job(5)))
    client = connect(server)

    assert_first_write_is_uncertain(server, client, "POST")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_write_by_another_method_without_a_real_response_is_uncertain(serve, connect, method):
    server = serve(send_once(http(499), then=job(5)))
    client = connect(server)

    assert_first_write_is_uncertain(server, client, method)


JUNK = {
    "another job": job(66),
    "a part of one": job(66)[:30],
    "no HTTP": b"junk" * 3,
    "much": b"x" * 100_000,
    "408": http(408),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_connection_that_brings_more_than_was_asked_is_dropped(serve, connect, junk):
    all_is_sent = threading.Event()
    server = serve(send_parts_once([job(101) + junk], all_is_sent, pause=0, then=job(102)))
    client = connect(server)

    assert client.create_job(7, {}).id == 101
    all_is_sent.wait(10)
    assert client.create_job(7, {}).id == 102
    assert server.requests[1].connection == 2


def send_parts_once(
    parts: list[bytes], all_is_sent: threading.Event, *, pause: float, then: bytes
) -> Respond:
    """Send parts to the first request, with a pause after each, and a response to later ones."""

    def respond(connection: socket.socket, request: Request, number: int) -> None:
        if number > 1:
            connection.sendall(then)
            return
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        all_is_sent.set()

    return respond


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_brings_another_job_after_a_write_is_dropped(
    serve, connect, tls_context, tls
):
    all_is_sent = threading.Event()
    parts = [job(101), JUNK["another job"]]
    respond = send_parts_once(parts, all_is_sent, pause=0.05, then=job(102))
    server = serve(respond, tls=tls_context if tls else None)
    client = connect(server)

    assert client.create_job(7, {}).id == 101
    all_is_sent.wait(10)
    assert client.create_job(7, {}).id == 102
    assert server.requests[1].connection == 2


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_brings_more_after_a_read_is_dropped(serve, connect, tls_context, tls):
    all_is_sent = threading.Event()
    empty_page = http(200, EMPTY_PAGE)
    parts = [empty_page, JUNK["408"]]
    respond = send_parts_once(parts, all_is_sent, pause=0.05, then=empty_page)
    server = serve(respond, tls=tls_context if tls else None)
    client = connect(server)

    assert list(client.list_forms()) == []
    all_is_sent.wait(10)
    assert list(client.list_forms()) == []
    assert server.requests[1].connection == 2


RIGHT_LENGTH = http(201, {"id": 1, "propertyID": 7})
CHUNKED = b"HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\n"
FRAMINGS = {
    "length too short": RIGHT_LENGTH.replace(b"Length: 26", b"Length: 20"),
    "length too long": RIGHT_LENGTH.replace(b"Length: 26", b"Length: 30"),
    "two lengths": b'HTTP/1.1 201 C\r\nContent-Length: 8\r\nContent-Length: 9\r\n\r\n{"id":1} ',
    "chunks without an end": CHUNKED + b'8\r\n{"id":1}\r\n',
    "a length beyond any memory": (
        b'HTTP/1.1 201 C\r\nContent-Length: 99999999999999999999\r\n\r\n{"id":1}'
    ),
    "a chunk of 256 TiB": CHUNKED + b'ffffffffffff\r\n{"id":1}',
    "a chunk of less than nothing": CHUNKED + b'-5\r\n{"id":1}',
    "a chunk of no length": CHUNKED + b'x\r\n{"id":1}\r\n0\r\n\r\n',
}


@pytest.mark.parametrize(
    "odd_response",
    [*FRAMINGS.values(), *INTERIM.values()],
    ids=[*FRAMINGS, *INTERIM],
)
def test_a_response_of_another_length_than_it_says_is_none(serve, connect, odd_response):
    def respond(connection, request, number):
        if number == 1:
            connection.sendall(odd_response)
            end(connection)
        else:
            connection.sendall(job(2))

    server = serve(respond)
    client = connect(server)

    with pytest.raises(FsmUncertainWriteError):
        client.create_job(7, {})
    assert client.create_job(7, {}).id == 2
    assert [request.connection for request in server.requests] == [1, 2]


COMPLETE = {
    "with a length": job(9),
    "chunked, with trailers": (
        b"HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b'5;a=b\r\n{"id"\r\n3\r\n:9}\r\n0\r\nX-Sum: 1\r\n\r\n'
    ),
    "up to the end": b'HTTP/1.0 201 C\r\n\r\n{"id":9}',
    "connection: close": http(201, {"id": 9}, "Connection: close"),
    "behind an interim response": INTERIM["103 with headers"] + job(9),
    "another success": http(200, {"id": "9", "propertyID": "7"}),
}


@pytest.mark.parametrize("complete", COMPLETE.values(), ids=COMPLETE)
def test_a_response_is_read_however_it_is_split(serve, connect, complete):
    cuts = iter(range(1, len(complete)))

    def respond(connection, request, number):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cut = next(cuts)
        connection.sendall(complete[:cut])
        time.sleep(0.001)
        connection.sendall(complete[cut:])
        if complete.startswith(b"HTTP/1.0") or b"close" in complete:
            end(connection)

    client = connect(serve(respond))

    for _ in range(len(complete) - 1):
        assert client.create_job(7, {}).id == 9


@pytest.mark.parametrize("status", [201, 400, 429])
def test_a_response_whose_head_was_cut_off_is_none(serve, connect, status):
    """Cut off behind its head, a refusal is one: its status was read."""
    complete = http(status, {"message": "no"}, "Retry-After: 0")
    head_length = complete.index(b"\r\n\r\n") + 4
    lengths = iter(range(len(complete)))

    def respond(connection, request, number):
        connection.sendall(complete[: next(lengths)])
        end(connection)

    server = serve(respond)
    client = connect(server, max_retries=0)

    for _ in range(head_length):
        with pytest.raises(FsmUncertainWriteError):
            client.create_job(7, {})
    error_with_head = FsmUncertainWriteError if status == 201 else FsmApiError
    for _ in range(head_length, len(complete)):
        with pytest.raises(error_with_head) as caught:
            client.create_job(7, {})
        assert getattr(caught.value, "status", 201) == status
    assert len(server.requests) == len(complete)


@pytest.fixture
def idle_clock(monkeypatch, clock):
    monkeypatch.setattr(connections, "time", clock)
    return clock


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_no_write_is_lost_on_a_connection_that_a_balancer_forgot(
    serve, connect, tls_context, idle_clock, tls
):
    server = serve(send_numbered_jobs, tls=tls_context if tls else None)
    client = connect(server)

    for number in range(1, 9):
        assert client.create_job(7, {}).id == number
        idle_clock.now += 1.5
        server.forget_connections()

    assert len(server.requests) == 8


def test_writes_that_follow_each_other_share_a_connection(serve, connect, idle_clock):
    server = serve(send_numbered_jobs)
    client = connect(server)

    for _ in range(5):
        client.create_job(7, {})
        idle_clock.now += 0.9

    assert {request.connection for request in server.requests} == {1}


def close_behind_each_response(connection: socket.socket, request: Request, number: int) -> None:
    connection.sendall(job(number))
    connection.close()


class DropsUsedConnections:
    """Answers the first request of each connection, and drops it with the second.

    That is a close behind each response of which no client can know before it has sent.
    """

    def __init__(self) -> None:
        self._used: set[int] = set()

    def __call__(self, connection: socket.socket, request: Request, number: int) -> None:
        if request.connection in self._used:
            connection.close()
            return
        self._used.add(request.connection)
        is_read = request.line.startswith("GET")
        connection.sendall(http(200, EMPTY_PAGE) if is_read else job(number))


@pytest.mark.parametrize(
    "make_respond",
    [lambda: close_behind_each_response, DropsUsedConnections],
    ids=["at once", "with the next request"],
)
@pytest.mark.parametrize("threads", [1, 8])
def test_as_many_writes_as_were_in_flight_are_lost_to_a_service_that_closes_connections(
    serve, connect, caplog, threads, make_respond
):
    caplog.set_level("INFO")
    server = serve(make_respond())
    client = connect(server)

    def is_certain(_: int) -> bool:
        with suppress(FsmUncertainWriteError):
            client.create_job(7, {})
            return True
        return False

    with ThreadPoolExecutor(threads) as pool:
        lost = list(pool.map(is_certain, range(60))).count(False)

    assert lost <= threads
    assert len(server.requests) <= 60  # none was sent again
    assert caplog.text.count("writes begin on new connections from now on") == min(lost, 1)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_read_that_is_lost_on_a_used_connection_lets_no_write_begin_on_one(
    serve, connect, tls_context, tls
):
    server = serve(DropsUsedConnections(), tls=tls_context if tls else None)
    client = connect(server)

    client.create_job(7, {})
    assert list(client.list_forms()) == []  # at its second attempt
    for _ in range(3):
        client.create_job(7, {})

    jobs = [request for request in server.requests if request.line.startswith("POST")]
    assert len({request.connection for request in jobs}) == len(jobs) == 4


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_writes_share_a_connection_after_one_was_lost_on_a_new_connection(
    serve, connect, tls_context, idle_clock, tls
):
    def respond(connection: socket.socket, request: Request, number: int) -> None:
        if number == 2:
            connection.close()
        else:
            connection.sendall(job(number))

    server = serve(respond, tls=tls_context if tls else None)
    client = connect(server)

    client.create_job(7, {})
    idle_clock.now += 1.5
    with pytest.raises(FsmUncertainWriteError):
        client.create_job(7, {})
    for _ in range(3):
        client.create_job(7, {})

    assert [request.connection for request in server.requests] == [1, 2, 3, 3, 3]


def test_reads_keep_their_connection_where_writes_begin_on_new_ones(serve, connect):
    def respond(connection: socket.socket, request: Request, number: int) -> None:
        if number == 2:
            connection.close()
        elif request.line.startswith("GET"):
            connection.sendall(http(200, EMPTY_PAGE))
        else:
            connection.sendall(job(number))

    server = serve(respond)
    client = connect(server)

    client.create_job(7, {})
    with pytest.raises(FsmUncertainWriteError):
        client.create_job(7, {})
    client.create_job(7, {})
    for _ in range(3):
        list(client.list_forms())

    assert [request.connection for request in server.requests] == [1, 1, 2, 2, 2, 2]


TRICKLED = {
    "in its head": (b"", b"HTTP/1.1 200 " + b"x" * 99),
    "in its body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b" " * 99),
    "in chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 16),
    "in interim responses": (b"", INTERIM["102"] * 4),
}


def trickle(head: bytes, rest: bytes) -> Respond:
    """Send the rest byte by byte, ten in a second."""

    def respond(connection: socket.socket, request: Request, number: int) -> None:
        connection.sendall(head)
        for byte in rest:
            connection.sendall(bytes([byte]))
            time.sleep(0.1)

    return respond


@pytest.mark.parametrize("parts", TRICKLED.values(), ids=TRICKLED)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_response_that_trickles_ends_at_four_timeouts(serve, connect, tls_context, parts, tls):
    server = serve(trickle(*parts), tls=tls_context if tls else None)
    client = connect(server, timeout=0.3, max_retries=0)
    limit = r"it took more than 1\.2 s \(timeout 0\.3 s\)"
    started_at = time.monotonic()

    with pytest.raises(FsmResponseError, match=limit):
        list(client.list_forms())
    assert 1 < time.monotonic() - started_at < 3
    with pytest.raises(FsmUncertainWriteError, match=limit):
        client.create_job(7, {})
    assert len(server.requests) == 2


def test_a_read_whose_response_trickles_is_repeated(serve, connect, caplog):
    trickle_page = trickle(b"", http(200, EMPTY_PAGE))

    def respond(connection: socket.socket, request: Request, number: int) -> None:
        if number == 1:
            trickle_page(connection, request, number)
        else:
            connection.sendall(http(200, EMPTY_PAGE))

    client = connect(serve(respond), timeout=0.3)

    assert list(client.list_forms()) == []
    assert "it took more than 1.2 s (timeout 0.3 s); trying again" in caplog.text


@pytest.mark.parametrize("fast", [0, 3], ids=["the clocks agree", "the service's is fast"])
@pytest.mark.parametrize("has_date", [True, False])
def test_a_retry_after_that_is_a_date_is_one_of_the_services_clock(serve, connect, fast, has_date):
    now = datetime.now(UTC) + timedelta(hours=fast)
    until = format_datetime(now + timedelta(seconds=20), usegmt=True)
    headers = [f"Retry-After: {until}"]
    if has_date:
        headers.append(f"Date: {format_datetime(now, usegmt=True)}")
    server = serve(send_once(http(429, b"", *headers), then=http(200, EMPTY_PAGE)))
    waits: list[float] = []
    client = connect(server, sleep=waits.append)

    if fast and not has_date:  # three hours are more than a request waits
        with pytest.raises(FsmApiError, match="the service asks to wait 108"):
            list(client.list_forms())
        return
    assert list(client.list_forms()) == []
    [wait] = waits
    assert wait == 20 if has_date else 18 < wait <= 20


FORBIDDEN = {
    "by the service": http(403, {"message": "no"}, "Content-Type: application/json"),
    "by a proxy": http(403, b"<html>Blocked</html>", "Content-Type: text/html", "Via: 1.1 squid"),
    "by whom nobody knows": http(403),
}


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_403_says_no_more_than_is_known(serve, connect, forbidden):
    client = connect(serve(send_always(forbidden)))

    with pytest.raises(
        FsmForbiddenError,
        match="; the token lacks the permission, or a proxy or firewall refused the request",
    ):
        client.request("GET", "/forms")


REFUSED_TUNNELS = {
    "407": http(407, b"who are you", "Proxy-Authenticate: Basic"),
    "502": http(502),
    "no HTTP": b"junk\r\n\r\n",
    "an interim response": INTERIM["103 with headers"],
    "nothing": b"",
}


@pytest.mark.parametrize("refusal", REFUSED_TUNNELS.values(), ids=REFUSED_TUNNELS)
def test_what_a_proxy_does_not_let_through_was_not_sent(serve, connect, monkeypatch, refusal):
    def respond(connection, request, number):
        connection.sendall(refusal)
        end(connection)

    server = serve(respond)
    monkeypatch.setenv("https_proxy", server.base_url)
    client = connect(server, base_url="https://api.example.test")

    with pytest.raises(FsmConnectionError):
        client.create_job(7, {})
    [request] = server.requests
    assert request.line.split()[0] == "CONNECT"


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_writes_through_a_proxy_are_as_safe(
    serve, connect, tls_context, monkeypatch, idle_clock, tls
):
    def respond(connection, request, number):
        connection.sendall(INTERIM["102"] + job(number))

    monkeypatch.setenv("no_proxy", "")
    if tls:
        server = serve(respond, tls=tls_context)
        proxy = serve(tunnel_to(server))
        monkeypatch.setenv("https_proxy", proxy.base_url)
        client = connect(server)
    else:
        server = serve(respond)  # as the proxy, which needs no tunnel
        monkeypatch.setenv("http_proxy", server.base_url)
        client = connect(server, allow_http=True, base_url="http://api.example.test")

    assert client.create_job(7, {}).id == 1
    assert client.create_job(7, {}).id == 2
    idle_clock.now += 1.5
    assert client.create_job(7, {}).id == 3
    assert client.create_job(7, {}).id == 4
    assert len({request.connection for request in server.requests}) == 2


def tunnel_to(server: RawServer) -> Respond:
    """Accept a CONNECT, then pass on all bytes from the client to a server and back."""
    _, _, port = server.base_url.rpartition(":")

    def respond(connection: socket.socket, request: Request, number: int) -> None:
        connection.sendall(http(200))
        with socket.create_connection(("127.0.0.1", int(port))) as onward:
            back = threading.Thread(target=pump, args=(onward, connection))
            back.start()
            pump(connection, onward)
            back.join(5)

    return respond


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        data = source.recv(65536)
        while data:
            target.sendall(data)
            data = source.recv(65536)
        target.shutdown(socket.SHUT_WR)


def test_a_ca_bundle_that_is_gone_sends_nothing(serve, connect, monkeypatch, tmp_path):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "gone.pem"))
    server = serve(lambda *_: None)
    base_url = server.base_url.replace("http://127.0.0.1", "https://localhost")
    client = connect(server, base_url=base_url)

    with pytest.raises(FsmConnectionError, match=r"was not reached: .*No such file or directory"):
        client.create_job(7, {})


@pytest.mark.parametrize(
    "proxy",
    [
        "http://",
        "http://127.0.0.1:9",
        "socks5://127.0.0.1:9",
        "http://[",
        "what://127.0.0.1:9",
    ],
)
def test_a_proxy_that_is_none_sends_nothing(serve, connect, monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    client = connect(serve(lambda *_: None), base_url="https://api.example.test")

    with pytest.raises((FsmConnectionError, FsmInputError)):
        client.create_job(7, {})


NOT_OURS = {
    "another property": {"id": 5, "propertyID": 8},
    "a property that is no number": {"id": 5, "propertyID": "ABC"},
    "id 0": {"id": 0, "propertyID": 7},
    "id true": {"id": True, "propertyID": 7},
    "no id": {"propertyID": 7},
}
OURS = [
    {"id": 5},
    {"id": 5, "propertyID": ""},
    {"id": "5", "propertyID": "7"},
    {"id": 5, "propertyID": "007"},
]


@pytest.mark.parametrize("body", NOT_OURS.values(), ids=NOT_OURS)
def test_a_response_that_is_not_of_our_job_is_uncertain(serve, connect, body):
    """After an early response, the next one on its connection belongs to the previous job."""
    server = serve(send_once(http(201, body), then=job(5)))
    client = connect(server)

    with pytest.raises(FsmUncertainWriteError, match=r"propertyID|'id'") as raised:
        client.create_job(7, {"customerReference": "PO-1"})
    assert raised.value.subject == {"propertyID": 7, "customerReference": "PO-1"}
    assert len(server.requests) == 1
    assert client.create_job(7, {}).id == 5
    assert server.requests[1].connection == 2


@pytest.mark.parametrize("body", OURS, ids=str)
def test_a_response_that_says_the_same_in_other_words_is_ours(serve, connect, body, caplog):
    client = connect(serve(send_always(http(201, body))))

    assert client.create_job("7", {"customerReference": "PO-1"}).id == 5
    assert "PO-1" not in caplog.text


@pytest.mark.parametrize("echoed", ["PO-2", ""])
def test_another_reference_alone_is_a_warning(serve, connect, echoed, caplog):
    response = job(5, customerReference=echoed)
    client = connect(serve(send_always(response)))

    assert client.create_job(7, {"customerReference": "PO-1"}).id == 5
    assert f"job 5 has the customerReference {echoed!r}, but 'PO-1' was sent" in caplog.text


@pytest.mark.parametrize("number", [0, -1])
def test_a_registration_without_a_usable_id_is_uncertain(serve, connect, number):
    body = {"id": number, "eventTypes": ["jobs.created"], "signingSecret": "hush-hush"}
    client = connect(serve(send_always(http(200, body))))
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com",
    }

    with pytest.raises(FsmUncertainWriteError, match="id") as raised:
        client.register_webhook(webhook)
    assert "hush" not in repr(raised.value)


def test_the_limit_of_a_response_is_a_setting(serve, connect):
    server = serve(send_always(http(200, "x" * 2**20)))
    client = connect(server, max_response_mb=2)
    limited_client = connect(server, max_response_mb=1, max_retries=0)

    assert len(client.request("GET", "/x")) == 2**20
    with pytest.raises(FsmResponseError, match="larger than 1 MiB, its max_response_mb"):
        limited_client.request("GET", "/x")


@pytest.mark.parametrize(("status", "says"), [(200, "larger than 64 MiB"), (503, "HTTP 503")])
def test_a_body_without_an_end_is_not_read_into_memory(serve, connect, status, says):
    mebibyte = bytes(2**20)
    compressor = zlib.compressobj(wbits=31)  # gzip
    bomb = b"".join(compressor.compress(mebibyte) for _ in range(800)) + compressor.flush()
    server = serve(send_always(http(status, bomb, "Content-Encoding: gzip")))
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(FsmError, match=says):
        connect(server, max_retries=0).request("GET", "/forms")

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak - peak_before < 250 * 2**10  # KiB; urllib3 before 2.6 decodes 64 MiB at a time


@pytest.mark.parametrize("charset", ["latin-1", '"utf-16"', "UTF-8", "us-ascii"])
def test_json_is_read_in_its_declared_charset(serve, connect, charset):
    text = json.dumps({"name": "Zoë"}, ensure_ascii=False)
    encoding = "utf-8" if charset == "us-ascii" else charset.strip('"')
    header = f"Content-Type: application/json; charset={charset}"
    client = connect(serve(send_always(http(200, text.encode(encoding), header))))

    assert client.request("GET", "/x") == {"name": "Zoë"}


@pytest.mark.parametrize(
    ("charset", "body"),
    [
        ("klingon", b"{}"),
        ("utf-16", b"{}x"),
        ("rot13", b"{}"),
    ],
)
def test_a_charset_that_the_body_is_not_in_is_named(serve, connect, charset, body):
    response = http(200, body, f"Content-Type: application/json; charset={charset}")
    server = serve(send_always(response))
    said = f"not in its declared charset, {charset}"

    with pytest.raises(FsmResponseError, match=said):
        connect(server, max_retries=0).request("GET", "/x")
    with pytest.raises(FsmUncertainWriteError, match=said):
        connect(server).create_job(7, {})
