"""Where and when a PDF ends: odd but legal HTTP over a raw socket."""

import gzip
import socket
import time
from functools import partial

import pytest

from fsm_provider.api import (
    Form,
    FsmClient,
    FsmDownloadTimeoutError,
    FsmNotPdfError,
    FsmResponseError,
    Settings,
)
from fsm_provider.testing import faults
from fsm_provider.testing.pdf import blank_pdf
from tests.unit.api.raw_server import RawServer, download, drip, http, raw_server
from tests.unit.conftest import TOKEN

PDF = blank_pdf("A certificate")
LARGE = b"%PDF-1.4\n" + b"x" * 100_000
"""It has no %%EOF."""


def head(*fields, version="1.1"):
    return "\r\n".join([f"HTTP/{version} 200 OK", *fields, "", ""]).encode()


def length(content):
    return head(f"Content-Length: {len(content)}")


def chunks(content, last=b"0\r\n\r\n"):
    chunk = b"%x\r\n%s\r\n" % (len(content), content)
    return chunk + last


CHUNKED = head("Transfer-Encoding: chunked")
GZIPPED = gzip.compress(PDF)
GZIP_HEAD = head("Content-Encoding: gzip")
GZIP_HEAD_WITH_LENGTH = head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED)}")
GZIP_HEAD_WITH_SHORT_LENGTH = head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED) - 40}")


@pytest.fixture
def fetch(service, make_client):
    """Download a URL, without retries."""
    client = make_client(service, max_retries=0)
    return partial(download, client)


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (head() + PDF, PDF),
        (head(version="1.0") + PDF, PDF),
        (head() + PDF + b"\0" * 900, PDF + b"\0" * 900),
        (CHUNKED + chunks(LARGE), LARGE),
        (GZIP_HEAD + GZIPPED, PDF),
        (GZIP_HEAD_WITH_LENGTH + GZIPPED, PDF),
    ],
    ids=[
        "closed",
        "HTTP/1.0",
        "padded",
        "chunks",
        "gzip",
        "gzip with its length",
    ],
)
def test_a_file_with_its_end_marker_or_its_last_chunk_is_accepted(fetch, response, content):
    with raw_server(response) as url:
        assert fetch(url) == content


INCOMPLETE = {
    "half": head() + PDF[: len(PDF) // 2],
    "no end": head(version="1.0") + PDF[:-8],
    "large": head() + LARGE,
    "padded by more than a kilobyte": head() + PDF + b"\0" * 1100,
    "unreadable length": head("Content-Length: many") + LARGE,
    "short": length(PDF) + PDF[:-1],
    "its length and no end": length(LARGE) + LARGE,
    "a length that is too short": length(PDF[:-60]) + PDF,
    "no last chunk": CHUNKED + chunks(LARGE, last=b""),
    "odd last chunk": CHUNKED + chunks(LARGE, last=b"\r\n"),
    "a chunk of less than nothing": CHUNKED + chunks(LARGE, last=b"-5\r\n"),
    "gzip cut off": GZIP_HEAD + gzip.compress(LARGE)[:-50],
    "gzip cut off, with its length": GZIP_HEAD_WITH_SHORT_LENGTH + GZIPPED[:-40],
}


@pytest.mark.parametrize("response", INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_file_without_its_end_is_refused_and_may_be_retried(fetch, response):
    with (
        raw_server(response) as url,
        pytest.raises(FsmResponseError, match="form 5001: no complete") as raised,
    ):
        fetch(url)

    assert not raised.value.permanent
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("content", [b"%PDF-", b"%PDF-1.4 and no more", LARGE[:1023]])
def test_a_few_bytes_are_no_pdf_though_all_of_them_came(fetch, content):
    with (
        raw_server(CHUNKED + chunks(content)) as url,
        pytest.raises(FsmNotPdfError, match="form 5001"),
    ):
        fetch(url)


def test_a_partial_file_is_discarded_and_fetched_again(service, make_client):
    attempts = []
    responses = iter([PDF[:200], PDF])
    client = make_client(service, max_retries=1)

    def read(chunks):
        attempts.append(b"")
        for chunk in chunks:
            attempts[-1] += chunk
        return "read to the end"

    with raw_server(head(), lambda _: next(responses)) as url:
        form = Form.model_validate({"id": 5001, "formPDFURL": url})
        assert client.download_pdf(form, read) == "read to the end"

    assert attempts == [PDF[:200], PDF]


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\r\n", b"x" * 1019])
def test_what_precedes_a_pdf_is_stored_too(fetch, before):
    with raw_server(CHUNKED + chunks(before, last=b"") + chunks(PDF)) as url:
        assert fetch(url) == before + PDF


def test_a_pdf_that_begins_after_a_kilobyte_is_none(fetch):
    with (
        raw_server(head() + b"x" * 1020 + PDF) as url,
        pytest.raises(FsmNotPdfError, match="not a PDF"),
    ):
        fetch(url)


TARGETS = [
    "/a%7Eb/c%2Dd",
    "/a/./b/../c",
    "/a?",
    "/a?x=%41&y=~'()*",
    "/a//b;c?d=e?f",
    "/a%e2?s=x%2by%3a",
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_signed_url_is_sent_as_it_came(fetch, target):
    def respond(connection, request, number):
        connection.sendall(http(200, PDF))

    with RawServer(respond) as server:
        assert fetch(f"{server.base_url}{target}") == PDF

    assert server.requests[-1].line == f"GET {target} HTTP/1.1"


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/caf\xe9.pdf?s=a%2Fb#x", "/caf%C3%A9.pdf?s=a%2Fb"),
        ("/caf\xe9.pdf", "/caf%C3%A9.pdf"),
        ("?s=\xe9", "/?s=%C3%A9"),
        ("/a.pdf?s=%7e#\xe9", "/a.pdf?s=%7e"),
    ],
)
def test_a_url_that_is_not_ascii_is_encoded(fetch, target, sent):
    def respond(connection, request, number):
        connection.sendall(http(200, PDF))

    with RawServer(respond) as server:
        assert fetch(f"{server.base_url}{target}") == PDF

    assert server.requests[-1].line == f"GET {sent} HTTP/1.1"


@pytest.mark.parametrize("target", TARGETS)
def test_a_signed_url_is_sent_as_it_came_by_a_redirect(fetch, target):
    def respond(connection, request, number):
        response = http(200, PDF)
        if number == 1:
            response = http(302, b"", f"Location: {server.base_url}{target}")
        connection.sendall(response)

    with RawServer(respond) as server:
        assert fetch(f"{server.base_url}/first") == PDF

    assert server.requests[-1].line == f"GET {target} HTTP/1.1"


def test_the_host_of_the_connection_is_its_own_where_it_is_an_idn(service, monkeypatch):
    """The token goes there, and it may be in a private network."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args: resolve("127.0.0.1", *args))
    base_url = service.base_url.replace("127.0.0.1", "müller.example")
    record = service.add_form() | {"formPDFURL": f"{base_url}/forms/5001/pdf"}
    form = Form.model_validate(record)
    settings = Settings(base_url=base_url, token=TOKEN, allow_http=True)

    with FsmClient(settings) as client:
        assert client.download_pdf(form, b"".join) == service.pdf(5001)


HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n" % len(PDF)
REDIRECT = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /a.pdf\r\n\r\n"


def slowly(content):
    return drip(content, every=0.05)


@pytest.mark.parametrize(
    "parts",
    [
        slowly(LENGTH + PDF),
        [LENGTH, *slowly(PDF)],
        [HEAD + b"\r\n", *slowly(PDF)],
        [HEAD + b"\r\n", PDF, *slowly(b"\n" * 200)],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *slowly(b"0" * 200)],
        [HEAD, *slowly(b"X-Slow: " + b"x" * 200)],
        slowly(REDIRECT),
    ],
    ids=["all", "length", "closed", "after its end", "chunk", "header", "redirect"],
)
def test_a_server_that_sends_a_byte_now_and_then_reaches_the_time_limit(
    service, make_client, parts
):
    client = make_client(service, timeout=5, max_retries=2)
    began = time.monotonic()

    with raw_server(*parts) as url, pytest.raises(FsmDownloadTimeoutError) as raised:
        download(client, url, max_seconds=0.5)

    assert str(raised.value) == "the PDF of form 5001: it did not arrive within 0.5 s"
    assert 0.5 <= time.monotonic() - began < 15
    assert not raised.value.permanent


def test_redirects_and_repeats_share_one_time_limit(service, make_client):
    client = make_client(service, max_retries=9)
    began = time.monotonic()
    form = service.add_form()
    service.fail("GET", "/forms/*/pdf", faults.Stall(0.5), every=True)

    with pytest.raises(FsmDownloadTimeoutError, match="it did not arrive within 2 s"):
        download(client, form["formPDFURL"], max_seconds=2)

    assert time.monotonic() - began < 15
    assert 2 <= len(service.requests) <= 5


def test_a_download_in_time_returns_its_connection(service, make_client):
    client = make_client(service)
    form = service.add_form()

    for _ in range(3):
        assert download(client, form["formPDFURL"], max_seconds=1.5) == service.pdf(form["id"])
    time.sleep(1.6)

    assert client.request("GET", "/forms")
    assert len({request.connection for request in service.requests}) == 1


def test_a_connection_with_tls_is_shut_too(
    service, make_client, certificate, tls_context, monkeypatch
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    client = make_client(service, timeout=5, max_retries=0)

    slow_body = [LENGTH, *slowly(PDF)]
    slow_head = slowly(LENGTH)
    for parts in (slow_body, slow_head):
        with raw_server(*parts, tls=tls_context) as url, pytest.raises(FsmDownloadTimeoutError):
            download(client, url, max_seconds=0.5)
    with raw_server(LENGTH, PDF, tls=tls_context) as url:
        assert download(client, url) == PDF


def test_throttle_delays_do_not_count(service, make_client):
    client = make_client(service, sleep=time.sleep, max_requests_per_second=1)
    form = service.add_form()

    for _ in range(3):
        assert download(client, form["formPDFURL"], max_seconds=0.9) == service.pdf(form["id"])
