"""Where a PDF ends: odd but legal HTTP over a raw socket."""

import gzip

import pytest

from fsm_provider.api import Form, FsmNotPdfError, FsmResponseError
from fsm_provider.testing.pdf import blank_pdf
from tests.unit.api.raw import raw_server

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
        (length(LARGE) + LARGE, LARGE),
        (CHUNKED + chunks(LARGE), LARGE),
        (head("Content-Encoding: gzip") + GZIPPED, PDF),
        (head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED)}") + GZIPPED, PDF),
    ],
    ids=["closed", "HTTP/1.0", "padded", "length", "chunks", "gzip", "gzip with its length"],
)
def test_a_file_with_its_end_marker_or_its_length_is_accepted(fetch, response, content):
    with raw_server(response) as url:
        assert fetch(url) == content


@pytest.mark.parametrize(
    "response",
    [
        head() + PDF[: len(PDF) // 2],
        head(version="1.0") + PDF[:-8],
        head() + LARGE,
        head() + PDF + b"\0" * 1100,
        head("Content-Length: many") + LARGE,
        length(PDF) + PDF[:-1],
        CHUNKED + chunks(LARGE, last=b""),
        CHUNKED + chunks(LARGE, last=b"\r\n"),
        CHUNKED + chunks(LARGE, last=b"-5\r\n"),
        head("Content-Encoding: gzip") + gzip.compress(LARGE)[:-50],
        head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED) - 40}") + GZIPPED[:-40],
    ],
    ids=[
        *("half", "no end", "large", "padded by more than a kilobyte", "unreadable length", "short"),
        *(
            "no last chunk",
            "odd last chunk",
            "a chunk of less than nothing",
            "gzip cut off",
            "gzip cut off, with its length",
        ),
    ],
)
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
    with raw_server(length(content) + content) as url, pytest.raises(FsmNotPdfError, match="form 5001"):
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
