"""The PDF of a form: where the token goes, what is refused, and what is retried."""

import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fsm_provider.api import (
    FsmApiError,
    FsmConnectionError,
    FsmForbiddenError,
    FsmNotPdfError,
    FsmPdfError,
    FsmPdfUrlError,
    FsmRateLimitedError,
    FsmResponseError,
    FsmServerError,
)
from fsm_provider.api.downloads import MAX_REDIRECTS
from fsm_provider.testing import FakeFileHost, faults
from tests.unit.api.raw_server import RawServer, download, http
from tests.unit.api.secret_checks import SECRET, assert_holds_no_secret
from tests.unit.conftest import TOKEN

PDFS = ("GET", "/forms/*/pdf")
NO_URLS = [
    f"https://files.example.com/caf\xe9.pdf?signature={SECRET}",
    f"https://[oops/{SECRET}",
    f"https://files\u2100.example.com/{SECRET}".encode().decode("latin-1"),
]
"""Locations as their bytes in Latin-1.

They are not UTF-8, no IPv6 address, and a host that contains ``a/c``.
"""


@pytest.fixture
def form(service):
    return service.add_form()


@pytest.fixture
def client(service, make_client):
    return make_client(service, max_retries=2)


@pytest.fixture
def files(service):
    with FakeFileHost(service) as running:
        yield running


def sent_tokens(requests):
    return [request.headers.get("authorization") for request in requests]


def test_the_services_own_pdf_is_fetched_with_the_token(service, client, form):
    assert download(client, form["formPDFURL"]) == service.pdf(form["id"])
    assert sent_tokens(service.requests) == ["Bearer ***"]


def test_another_host_gets_no_token(service, client, form, files):
    url = files.pdf_url(form["id"])

    content = download(client, url, allow_private_addresses=True)

    assert content == service.pdf(form["id"])
    assert sent_tokens(files.requests) == [None]


def test_the_services_host_on_another_port_gets_no_token_and_may_be_private(service, client, form):
    with FakeFileHost(service, name="127.0.0.1") as files:
        content = download(client, files.pdf_url(form["id"]))

    assert content == service.pdf(form["id"])
    assert sent_tokens(files.requests) == [None]


def test_hosts_in_between_do_not_end_the_connections_to_the_service(service, client, form):
    """urllib3 keeps the pools of ten hosts, and closes that of the one used longest ago."""
    list(client.list_forms())
    with ExitStack() as running:
        hosts = [running.enter_context(FakeFileHost(service, name="127.0.0.1")) for _ in range(11)]
        for files in hosts:
            url = files.pdf_url(form["id"])
            assert download(client, url) == service.pdf(form["id"])

    [listed] = client.list_forms()
    assert listed.id == form["id"]


def test_a_name_that_resolves_to_a_private_address_is_sent_nothing(
    service, make_client, form, monkeypatch
):
    client = make_client(service, allow_http=True)
    name = "files.example.com"
    look_up = socket.getaddrinfo

    def look_up_name_here(host, *arguments):
        if host == name:
            host = "127.0.0.1"
        return look_up(host, *arguments)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_name_here)
    refusal = r"form 5001: 127\.0\.0\.1 is not a public .*allow_private_add"

    with (
        FakeFileHost(service, name=name) as files,
        pytest.raises(FsmPdfUrlError, match=refusal),
    ):
        download(client, files.pdf_url(form["id"]))

    assert files.requests == []


def client_log(caplog):
    """Return what the client logs; the fake's server logs each URL."""
    records = [record for record in caplog.records if not record.name.startswith("uvicorn")]
    return " ".join(record.getMessage() for record in records)


def redirect_chains(service, files):
    """Return by name: the first URL, its host, and the URL to which that redirects."""
    ours = f"{service.base_url}/forms/5001/pdf"
    theirs = files.pdf_url(5001)
    another_port = theirs.replace("localhost", "127.0.0.1")
    return {
        "ours to ours": (ours, service, ours),
        "ours to theirs": (ours, service, theirs),
        "theirs to ours": (theirs, files, ours),
        "theirs to theirs": (theirs, files, theirs),
        "ours to another port": (ours, service, another_port),
    }


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize(
    "chain",
    [
        "ours to ours",
        "ours to theirs",
        "theirs to ours",
        "theirs to theirs",
        "ours to another port",
    ],
)
def test_a_redirect_is_followed_and_the_token_goes_to_the_service_alone(
    service, client, form, files, caplog, chain, status
):
    caplog.set_level(logging.DEBUG)
    url, first_host, second_url = redirect_chains(service, files)[chain]
    first_host.fail(*PDFS, faults.Redirect(second_url, status))

    content = download(client, url, allow_private_addresses=True)

    assert content == service.pdf(form["id"])
    assert len(service.requests) + len(files.requests) == 2
    assert set(sent_tokens(service.requests)) <= {"Bearer ***"}
    assert set(sent_tokens(files.requests)) <= {None}
    assert TOKEN not in repr(files.requests)
    assert TOKEN not in client_log(caplog)
    assert "signature" not in client_log(caplog)


def test_so_many_redirects_are_followed(service, client, form):
    service.fail(*PDFS, faults.Redirect(), calls=range(1, MAX_REDIRECTS + 1))

    content = download(client, form["formPDFURL"])

    assert content == service.pdf(form["id"])
    assert len(service.requests) == MAX_REDIRECTS + 1


def test_no_more_redirects_are_followed(service, client, form):
    service.fail(*PDFS, faults.Redirect(), calls=range(1, MAX_REDIRECTS + 2))

    with pytest.raises(FsmPdfUrlError, match=r"redirects more than 5 times$"):
        download(client, form["formPDFURL"])

    assert len(service.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("url", NO_URLS, ids=ascii)
def test_a_redirect_to_what_is_no_url_is_refused_without_showing_it(service, client, form, url):
    service.fail(*PDFS, faults.Redirect(url))
    refusal = r"^the PDF of form 5001: it redirects to a URL that is not valid$"

    with pytest.raises(FsmPdfUrlError, match=refusal) as raised:
        download(client, form["formPDFURL"])

    assert_holds_no_secret(raised.value)
    assert len(service.requests) == 1


def test_a_relative_redirect_stays_on_its_host(service, client, form):
    path = urlsplit(form["formPDFURL"]).path
    service.fail(*PDFS, faults.Redirect(f"{path}?again=1"))

    content = download(client, form["formPDFURL"])

    assert content == service.pdf(form["id"])
    first, second = service.requests
    assert first.query == ()
    assert second.query == (("again", "1"),)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "its record has no formPDFURL"),
        ("/forms/5001/pdf", "its URL is not valid"),
        ("https://files.example.com:port/a.pdf", "its URL is not valid"),
        ("ftp://files.example.com/canary", "its URL is not http or https"),
        (Path(__file__).as_uri(), "its URL is not http or https"),
        ("https://user:canary@files.example.com/a.pdf", "contains a user or password"),
        ("http://files.example.com/a.pdf?canary", "http://files.example.com is not encrypted"),
        ("http://127.0.0.1.example.com/a.pdf", "is not encrypted"),
        (
            "https://169.254.169.254/latest/meta-data?canary",
            "169.254.169.254 is not a public address",
        ),
        ("https://[::ffff:10.0.0.1]/canary", "10.0.0.1 is not a public address"),
    ],
)
def test_a_refused_url_is_sent_nothing(client, url, said):
    with pytest.raises(FsmPdfUrlError, match=said) as raised:
        download(client, url)

    assert str(raised.value).startswith("the PDF of form 5001: ")
    assert "canary" not in str(raised.value)


def test_behind_a_proxy_the_proxy_resolves_names(service, make_client, monkeypatch):
    content = b"%PDF-1.4 by the proxy %%EOF"
    response = http(200, content)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with RawServer(lambda connection, *_: connection.sendall(response)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.base_url)
        client = make_client(service, allow_http=True)

        assert download(client, "http://files.example.com/a.pdf?s=1") == content

    [request] = proxy.requests
    assert request.line == "GET http://files.example.com/a.pdf?s=1 HTTP/1.1"
    assert b"authorization" not in request.head.lower()


def test_a_page_served_as_a_pdf_is_refused_at_once(service, client, form):
    page = faults.Body("<!doctype html><title>Log in</title>", content_type="text/html")
    service.fail(*PDFS, page, every=True)

    refusal = r"form 5001: the response is not a PDF, .*\(text/html\)"

    with pytest.raises(FsmNotPdfError, match=refusal) as raised:
        download(client, form["formPDFURL"])

    assert len(service.requests) == 1
    assert not raised.value.permanent


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_that_is_too_large_is_refused(service, client, form, chunked):
    service.fail(*PDFS, faults.Huge(1_000_000, chunked=chunked))

    with pytest.raises(FsmPdfError, match="larger than max_bytes, 300,000") as raised:
        download(client, form["formPDFURL"], max_bytes=300_000)

    assert raised.value.permanent
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (faults.Truncated(), FsmResponseError),
        (faults.Status(503), FsmServerError),
        (faults.Status(429, retry_after=3), FsmRateLimitedError),
    ],
)
def test_a_transient_failure_restarts_the_download(service, client, form, fault, kind):
    service.fail(*PDFS, fault, call=1)
    assert download(client, form["formPDFURL"]) == service.pdf(form["id"])

    service.fail(*PDFS, fault, every=True)
    with pytest.raises(kind, match="the PDF of form 5001"):
        download(client, form["formPDFURL"])

    assert len(service.requests) == 2 + 3


def test_a_host_that_is_not_reached_is_named(client, form, files):
    url = files.pdf_url(form["id"])
    with files.refuse_connections(), pytest.raises(FsmConnectionError) as raised:
        download(client, url, allow_private_addresses=True)

    host = urlsplit(url).netloc
    assert str(raised.value).startswith(f"the PDF of form 5001: http://{host} was not reached: ")
    assert "signature" not in str(raised.value)


def test_a_refusal_by_the_service_says_what_is_wrong_with_the_connection(service, client, form):
    service.fail(*PDFS, faults.Status(403, form["formPDFURL"]))

    refusal = "GET the PDF of form 5001 returned HTTP 403; the token lacks"

    with pytest.raises(FsmForbiddenError, match=refusal):
        download(client, form["formPDFURL"])


def test_a_refusal_by_another_host_neither_blames_the_token_nor_shows_the_url(
    client, form, files, caplog
):
    caplog.set_level(logging.DEBUG)
    files.lifetime = -1
    url = files.pdf_url(form["id"])

    with pytest.raises(FsmApiError) as raised:
        download(client, url, allow_private_addresses=True)

    assert type(raised.value) is FsmApiError
    assert str(raised.value) == "GET the PDF of form 5001 returned HTTP 403"
    assert "signature" not in client_log(caplog)


def test_other_hosts_do_not_count_for_the_services_requests_a_second(
    service, make_client, form, files
):
    waits = []
    client = make_client(service, sleep=waits.append, max_requests_per_second=0.01)

    download(client, files.pdf_url(form["id"]), allow_private_addresses=True)
    download(client, form["formPDFURL"])
    assert waits == []
    download(client, form["formPDFURL"])
    assert len(waits) == 1
