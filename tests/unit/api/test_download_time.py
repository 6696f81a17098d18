"""The total time limit of a PDF, however slowly its bytes arrive."""

import time

import pytest

from fsm_provider.api import Form, FsmDownloadTimeoutError
from fsm_provider.testing import faults
from fsm_provider.testing.pdf import blank_pdf
from tests.unit.api.raw import drip, raw_server

PDF = blank_pdf("A certificate")
HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n" % len(PDF)
REDIRECT = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /a.pdf\r\n\r\n"


def slowly(content):
    return drip(content, every=0.05)


def download(client, url, **options):
    form = Form.model_validate({"id": 5001, "formPDFURL": url})
    return client.download_pdf(form, b"".join, **options)


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
def test_a_server_that_sends_a_byte_now_and_then_reaches_the_time_limit(service, make_client, parts):
    client, began = make_client(service, timeout=5, max_retries=2), time.monotonic()

    with raw_server(*parts) as url, pytest.raises(FsmDownloadTimeoutError) as raised:
        download(client, url, max_seconds=0.5)

    assert str(raised.value) == "the PDF of form 5001: it did not arrive within 0.5 s"
    assert 0.5 <= time.monotonic() - began < 15
    assert not raised.value.permanent


def test_redirects_and_repeats_share_one_time_limit(service, make_client):
    client, began = make_client(service, max_retries=9), time.monotonic()
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


def test_a_connection_with_tls_is_shut_too(service, make_client, certificate, tls_context, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    client = make_client(service, timeout=5, max_retries=0)

    for parts in ([LENGTH, *slowly(PDF)], slowly(LENGTH)):
        with raw_server(*parts, tls=tls_context) as url, pytest.raises(FsmDownloadTimeoutError):
            download(client, url, max_seconds=0.5)
    with raw_server(LENGTH, PDF, tls=tls_context) as url:
        assert download(client, url) == PDF


def test_throttle_delays_do_not_count(service, make_client):
    client = make_client(service, sleep=time.sleep, max_requests_per_second=1)
    form = service.add_form()

    for _ in range(3):
        assert download(client, form["formPDFURL"], max_seconds=0.9) == service.pdf(form["id"])
