"""Unusual or invalid HTTP: a job is never mistaken for another, and never created twice."""

import gzip
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fsm_provider.api import (
    FsmApiError,
    FsmClient,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmResponseError,
    FsmUncertainWriteError,
    Settings,
    connections,
)
from tests.unit.api.raw_server import RawServer, http
from tests.unit.conftest import TOKEN

EMPTY_PAGE = {"pagination": {"hasMore": False}, "data": []}
INTERIM = {
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "102": b"HTTP/1.1 102 Processing\r\n\r\n",
    "103 with headers": b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nContent-Length: 7\r\n\r\n",
    "199": b"HTTP/1.1 199 Whatever\r\n\r\n",
    "several": b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
}
NO_RESPONSE_TO_A_WRITE = {
    **{
        str(status): http(status, b"", "Location: /elsewhere")
        for status in (300, 301, 302, 303, 304, 307)
    },
    "303 with a job": http(303, {"id": 77, "propertyID": 7}, "Location: /jobs/77"),
    "408": http(408),
    "408 with a job": http(408, {"id": 77, "propertyID": 7}),
    **{str(status): http(status) for status in (444, 460, 499, 600)},
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "endless interim responses": INTERIM["102"] * 300,
    "endless continues": INTERIM["100"] * 300,
}


TCPI_DATA_SEGS_IN = 152
"""Where Linux's ``struct tcp_info`` has the number of packets with data."""


def job(number: int, **fields: object) -> bytes:
    return http(201, {"id": number, "propertyID": 7, **fields})


def end(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    running: list[RawServer] = []

    def start(respond, **options) -> RawServer:
        running.append(RawServer(respond, **options))
        return running[-1].__enter__()

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def connect(certificate) -> Iterator[Callable[..., FsmClient]]:
    made: list[FsmClient] = []

    def client_for(server: RawServer, *, sleep=lambda _: None, **settings) -> FsmClient:
        given = {
            "base_url": server.base_url,
            "token": TOKEN,
            "timeout": 2,
            "max_retries": 1,
            **settings,
        }
        if given["base_url"].startswith("https://127.0.0.1"):
            given.setdefault("ca_bundle", str(certificate))
        made.append(FsmClient(Settings.checked(given), sleep=sleep))
        return made[-1]

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

    assert [client.create_job(7, {}).id for _ in range(3)] == [101, 102, 103]


@pytest.mark.parametrize(
    ("method", "odd"),
    [
        *(
            pytest.param("POST", odd, id=f"POST-{name}")
            for name, odd in NO_RESPONSE_TO_A_WRITE.items()
        ),
        *(
            pytest.param(method, http(499), id=f"{method}-499")
            for method in ("PUT", "PATCH", "DELETE")
        ),
    ],
)
def test_a_write_without_a_real_response_is_uncertain_and_its_connection_dropped(
    serve, connect, odd, method
):
    server = serve(
        lambda connection, request, number: connection.sendall(odd if number == 1 else job(5))
    )
    client = connect(server)

    with pytest.raises(FsmUncertainWriteError):
        client.request(method, "/properties/7/jobs", json={"customerReference": "PO-1"})
    assert len(server.requests) == 1
    assert client.create_job(7, {}).id == 5
    assert server.requests[1].connection == 2


JUNK = {
    "another job": job(66),
    "a part of one": job(66)[:30],
    "no HTTP": b"junk" * 3,
    "much": b"x" * 100_000,
    "408": http(408),
}


@pytest.mark.parametrize(
    ("tls", "junk", "pause", "first"),
    [
        *((False, junk, 0, "POST") for junk in JUNK.values()),
        *((tls, JUNK["another job"], 0.05, "POST") for tls in (False, True)),
        *((tls, JUNK["408"], 0.05, "GET") for tls in (False, True)),
    ],
)
def test_a_connection_that_brings_more_than_was_asked_is_dropped(
    serve, connect, tls_context, tls, junk, pause, first
):
    all_is_sent = threading.Event()

    def respond(connection, request, number):
        right = http(200, EMPTY_PAGE) if request.line.startswith("GET") else job(100 + number)
        if number > 1:
            connection.sendall(right)
            return
        with_junk = [right + junk] if not pause else [right, junk]
        for part in with_junk:
            connection.sendall(part)
            time.sleep(pause)
        all_is_sent.set()

    server = serve(respond, tls=tls_context if tls else None)
    client = connect(server)
    if first == "GET":
        list(client.list_forms())
    else:
        assert client.create_job(7, {}).id == 101
    all_is_sent.wait(10)

    if first == "GET":
        assert list(client.list_forms()) == []
    else:
        assert client.create_job(7, {}).id == 102
    assert server.requests[1].connection == 2


FRAMINGS = {
    "length too short": http(201, {"id": 1, "propertyID": 7}).replace(b"Length: 26", b"Length: 20"),
    "length too long": http(201, {"id": 1, "propertyID": 7}).replace(b"Length: 26", b"Length: 30"),
    "two lengths": b'HTTP/1.1 201 C\r\nContent-Length: 8\r\nContent-Length: 9\r\n\r\n{"id":1} ',
    "chunks without an end": b'HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"id":1}\r\n',
    "a length beyond any memory": b'HTTP/1.1 201 C\r\nContent-Length: 99999999999999999999\r\n\r\n{"id":1}',
    "a chunk of 256 TiB": b'HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n{"id":1}',
    "a chunk of less than nothing": b'HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{"id":1}',
    "a chunk of no length": b'HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{"id":1}\r\n0\r\n\r\n',
}


@pytest.mark.parametrize("odd", [*FRAMINGS.values(), *INTERIM.values()], ids=[*FRAMINGS, *INTERIM])
def test_a_response_of_another_length_than_it_says_is_none(serve, connect, odd):
    def respond(connection, request, number):
        connection.sendall(odd if number == 1 else job(2))
        if number == 1:
            end(connection)

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

    assert {client.create_job(7, {}).id for _ in range(len(complete) - 1)} == {9}


@pytest.mark.parametrize("status", [201, 400, 429])
def test_a_response_whose_head_was_cut_off_is_none(serve, connect, status):
    """Cut off behind its head, a refusal is one: its status was read."""
    complete = http(status, {"message": "no"}, "Retry-After: 0")
    head = complete.index(b"\r\n\r\n") + 4
    lengths = iter(range(len(complete)))

    def respond(connection, request, number):
        connection.sendall(complete[: next(lengths)])
        end(connection)

    server = serve(respond)
    client = connect(server, max_retries=0)

    for _ in range(head):
        with pytest.raises(FsmUncertainWriteError):
            client.create_job(7, {})
    for _ in range(head, len(complete)):
        with pytest.raises(FsmUncertainWriteError if status == 201 else FsmApiError) as caught:
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
    def respond(connection, request, number):
        connection.sendall(job(number))

    server = serve(respond, tls=tls_context if tls else None)
    client = connect(server)
    made = []
    for _ in range(8):
        made.append(client.create_job(7, {}).id)
        idle_clock.now += 1.5
        server.forget_connections()

    assert made == list(range(1, 9))
    assert len(server.requests) == 8


def test_writes_that_follow_each_other_share_a_connection(serve, connect, idle_clock):
    server = serve(lambda connection, request, number: connection.sendall(job(number)))
    client = connect(server)

    for _ in range(5):
        client.create_job(7, {})
        idle_clock.now += 0.9

    assert {request.connection for request in server.requests} == {1}


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
    assert [request.line.split()[0] for request in server.requests] == ["CONNECT"]


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_writes_through_a_proxy_are_as_safe(
    serve, connect, tls_context, monkeypatch, idle_clock, tls
):
    def respond(connection, request, number):
        connection.sendall(INTERIM["102"] + job(number))

    service = serve(respond, tls=tls_context if tls else None)

    def tunnel(connection, request, number):
        if not tls:
            return respond(connection, request, number)
        connection.sendall(http(200))
        with socket.create_connection(
            ("127.0.0.1", int(service.base_url.rpartition(":")[2]))
        ) as onward:
            back = threading.Thread(target=pump, args=(onward, connection))
            back.start()
            pump(connection, onward)
            back.join(5)
        return None

    proxy = serve(tunnel)
    monkeypatch.setenv("https_proxy" if tls else "http_proxy", proxy.base_url)
    monkeypatch.setenv("no_proxy", "")
    extra = {} if tls else {"allow_http": True, "base_url": "http://api.example.test"}
    client = connect(service, **extra)
    made = []
    for number in range(4):
        made.append(client.create_job(7, {}).id)
        idle_clock.now += 1.5 if number == 1 else 0

    assert made == [1, 2, 3, 4]
    assert len({request.connection for request in (service if tls else proxy).requests}) == 2


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_a_ca_bundle_that_is_gone_sends_nothing(serve, connect, monkeypatch, tmp_path):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "gone.pem"))
    server = serve(lambda *_: None)
    client = connect(
        server, base_url=server.base_url.replace("http://127.0.0.1", "https://localhost")
    )

    with pytest.raises(FsmConnectionError, match=r"was not reached: .*No such file or directory"):
        client.create_job(7, {})


@pytest.mark.parametrize(
    "proxy",
    ["http://", "http://127.0.0.1:9", "socks5://127.0.0.1:9", "http://[", "what://127.0.0.1:9"],
)
def test_a_proxy_that_is_none_sends_nothing(serve, connect, monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)

    with pytest.raises((FsmConnectionError, FsmInputError)):
        connect(serve(lambda *_: None), base_url="https://api.example.test").create_job(7, {})


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
    not_ours = http(201, body)
    server = serve(
        lambda connection, request, number: connection.sendall(not_ours if number == 1 else job(5))
    )
    client = connect(server)

    with pytest.raises(FsmUncertainWriteError, match=r"propertyID|'id'") as raised:
        client.create_job(7, {"customerReference": "PO-1"})
    assert raised.value.subject == {"propertyID": 7, "customerReference": "PO-1"}
    assert len(server.requests) == 1
    assert client.create_job(7, {}).id == 5
    assert server.requests[1].connection == 2


@pytest.mark.parametrize("body", OURS, ids=str)
def test_a_response_that_says_the_same_in_other_words_is_ours(serve, connect, body, caplog):
    server = serve(lambda connection, *_: connection.sendall(http(201, body)))

    assert connect(server).create_job("7", {"customerReference": "PO-1"}).id == 5
    assert "PO-1" not in caplog.text


@pytest.mark.parametrize("echoed", ["PO-2", ""])
def test_another_reference_alone_is_a_warning(serve, connect, echoed, caplog):
    client = connect(
        serve(lambda connection, *_: connection.sendall(job(5, customerReference=echoed)))
    )

    assert client.create_job(7, {"customerReference": "PO-1"}).id == 5
    assert f"job 5 has the customerReference {echoed!r}, but 'PO-1' was sent" in caplog.text


@pytest.mark.parametrize("number", [0, -1])
def test_a_registration_without_a_usable_id_is_uncertain(serve, connect, number):
    body = {"id": number, "eventTypes": ["jobs.created"], "signingSecret": "hush-hush"}
    client = connect(serve(lambda connection, *_: connection.sendall(http(200, body))))
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com",
    }

    with pytest.raises(FsmUncertainWriteError, match="id") as raised:
        client.register_webhook(webhook)
    assert "hush" not in repr(raised.value)


def test_the_limit_of_a_response_is_a_setting(serve, connect):
    server = serve(lambda connection, *_: connection.sendall(http(200, "x" * 2**20)))

    assert len(connect(server, max_response_mb=2).request("GET", "/x")) == 2**20
    with pytest.raises(FsmResponseError, match="larger than 1 MiB, its max_response_mb"):
        connect(server, max_response_mb=1, max_retries=0).request("GET", "/x")


@pytest.mark.parametrize(("status", "says"), [(200, "larger than 64 MiB"), (503, "HTTP 503")])
def test_a_body_without_an_end_is_not_read_into_memory(serve, connect, status, says):
    bomb = gzip.compress(bytes(200 * 2**20))
    server = serve(
        lambda connection, *_: connection.sendall(http(status, bomb, "Content-Encoding: gzip"))
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(FsmError, match=says):
        connect(server, max_retries=0).request("GET", "/forms")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 160 * 2**10


@pytest.mark.parametrize("charset", ["latin-1", '"utf-16"', "UTF-8", "us-ascii"])
def test_json_is_read_in_its_declared_charset(serve, connect, charset):
    body = json.dumps({"name": "Zoë"}, ensure_ascii=False)
    sent = body.encode("utf-8" if charset == "us-ascii" else charset.strip('"'))
    header = f"Content-Type: application/json; charset={charset}"
    client = connect(serve(lambda connection, *_: connection.sendall(http(200, sent, header))))

    assert client.request("GET", "/x") == {"name": "Zoë"}


@pytest.mark.parametrize(
    ("charset", "body"), [("klingon", b"{}"), ("utf-16", b"{}x"), ("rot13", b"{}")]
)
def test_a_charset_that_the_body_is_not_in_is_named(serve, connect, charset, body):
    answer = http(200, body, f"Content-Type: application/json; charset={charset}")
    server = serve(lambda connection, *_: connection.sendall(answer))

    with pytest.raises(FsmResponseError, match=f"not in its declared charset, {charset}"):
        connect(server, max_retries=0).request("GET", "/x")
    with pytest.raises(FsmUncertainWriteError, match=f"not in its declared charset, {charset}"):
        connect(server).create_job(7, {})
