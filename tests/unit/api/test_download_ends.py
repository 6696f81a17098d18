"""Where a PDF ends: odd but legal HTTP over a raw socket."""

import gzip
import socket

import pytest

from fsm_provider.api import Form, FsmClient, FsmNotPdfError, FsmResponseError, Settings
from fsm_provider.testing.pdf import blank_pdf
from tests.unit.api.raw import RawServer, http, raw_server
from tests.unit.conftest import TOKEN

PDF = blank_pdf("A certificate")
LARGE = b"%PDF-1.4\n" + b"x" * 100_000
"""It has no %%EOF."""


def head(*fields, version="1.1"):
    return "\r\n".join([f"HTTP/{version} 200 OK", *fields, "", ""]).encode()


def length(content):
    return head(f"Content-Length: {len(content)}")


def chunks(content, last=b"0\r\n\r\n"):
    return b"%x\r\n%s\r\n" % (len(content), content) + last


CHUNKED = head("Transfer-Encoding: chunked")
GZIPPED = gzip.compress(PDF)


@pytest.fixture
def fetch(service, make_client):
    client = make_client(service, max_retries=0)

    def download(url, **options):
        form = Form.model_validate({"id": 5001, "formPDFURL": url})
        return client.download_pdf(form, b"".join, **options)

    return download


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (head() + PDF, PDF),
        (head(version="1.0") + PDF, PDF),
        (head() + PDF + b"\0" * 900, PDF + b"\0" * 900),
        (CHUNKED + chunks(LARGE), LARGE),
        (head("Content-Encoding: gzip") + GZIPPED, PDF),
        (head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED)}") + GZIPPED, PDF),
    ],
    ids=["closed", "HTTP/1.0", "padded", "chunks", "gzip", "gzip with its length"],
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
    "gzip cut off": head("Content-Encoding: gzip") + gzip.compress(LARGE)[:-50],
    "gzip cut off, with its length": head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED) - 40}")
    + GZIPPED[:-40],
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
    with raw_server(CHUNKED + chunks(content)) as url, pytest.raises(FsmNotPdfError, match="form 5001"):
        fetch(url)


def test_a_partial_file_is_discarded_and_fetched_again(service, make_client):
    given, responses = [], iter([PDF[:200], PDF])
    client = make_client(service, max_retries=1)

    def read(chunks):
        given.append(b"")
        for chunk in chunks:
            given[-1] += chunk
        return "read to the end"

    with raw_server(head(), lambda _: next(responses)) as url:
        form = Form.model_validate({"id": 5001, "formPDFURL": url})
        assert client.download_pdf(form, read) == "read to the end"

    assert given == [PDF[:200], PDF]


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\r\n", b"x" * 1019])
def test_what_precedes_a_pdf_is_stored_too(fetch, before):
    with raw_server(CHUNKED + chunks(before, last=b"") + chunks(PDF)) as url:
        assert fetch(url) == before + PDF


def test_a_pdf_that_begins_after_a_kilobyte_is_none(fetch):
    with raw_server(head() + b"x" * 1020 + PDF) as url, pytest.raises(FsmNotPdfError, match="not a PDF"):
        fetch(url)


@pytest.mark.parametrize(
    "target",
    ["/a%7Eb/c%2Dd", "/a/./b/../c", "/a?", "/a?x=%41&y=~'()*", "/a//b;c?d=e?f", "/a%e2?s=x%2by%3a"],
)
@pytest.mark.parametrize("redirected", [False, True])
def test_a_signed_url_is_sent_as_it_came(fetch, target, redirected):
    def respond(connection, request, number):
        to = f"Location: {server.base_url}{target}"
        connection.sendall(http(302, b"", to) if redirected and number == 1 else http(200, PDF))

    with RawServer(respond) as server:
        assert fetch(server.base_url + ("/first" if redirected else target)) == PDF

    assert server.requests[-1].line == f"GET {target} HTTP/1.1"


def test_the_host_of_the_connection_is_its_own_where_it_is_an_idn(service, monkeypatch):
    """The token goes there, and it may be in a private network."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args: resolve("127.0.0.1", *args))
    ours = service.base_url.replace("127.0.0.1", "müller.example")
    form = Form.model_validate(service.add_form() | {"formPDFURL": f"{ours}/forms/5001/pdf"})

    with FsmClient(Settings(base_url=ours, token=TOKEN, allow_http=True)) as client:
        assert client.download_pdf(form, b"".join) == service.pdf(5001)
