"""The PDF of a form: where the token goes, what is refused, and what is tried again."""

import http.server
import logging
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fsm_provider.api import (
    Form,
    FsmAddressError,
    FsmApiError,
    FsmConnectionError,
    FsmFileError,
    FsmForbiddenError,
    FsmNotPdfError,
    FsmRateLimitedError,
    FsmResponseError,
    FsmServerError,
)
from fsm_provider.api.connections import refuse_unless_public
from fsm_provider.api.downloads import MOST_REDIRECTS
from fsm_provider.testing import FakeFileHost, faults
from tests.unit.conftest import TOKEN

PDFS = ("GET", "/forms/*/pdf")


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


def download(client, address, **options):
    form = Form.model_validate({"id": 5001, "formPDFURL": address})
    return client.download_pdf(form, b"".join, **options)


def tokens_seen(requests):
    return [request.headers.get("authorization") for request in requests]


def test_the_services_own_pdf_is_fetched_with_the_token(service, client, form):
    assert download(client, form["formPDFURL"]) == service.pdf(form["id"])
    assert tokens_seen(service.requests) == ["Bearer ***"]


def test_another_host_gets_no_token(service, client, form, files):
    got = download(client, files.address(form["id"]), allow_private_addresses=True)

    assert got == service.pdf(form["id"])
    assert tokens_seen(files.requests) == [None]


def test_the_services_host_on_another_port_gets_no_token_and_may_be_private(service, client, form):
    with FakeFileHost(service, name="127.0.0.1") as files:
        assert download(client, files.address(form["id"])) == service.pdf(form["id"])
        assert tokens_seen(files.requests) == [None]


def test_a_name_that_leads_to_a_private_address_is_sent_nothing(client, form, files):
    with pytest.raises(FsmAddressError, match=r"form 5001: 127\.0\.0\.1 is not a public .*allow_private_add"):
        download(client, files.address(form["id"]))

    assert files.requests == []


def logged(caplog):
    """What the client logs; the fake's server logs each address."""
    records = [record for record in caplog.records if not record.name.startswith("uvicorn")]
    return " ".join(record.getMessage() for record in records)


def chains(service, files):
    ours, theirs = f"{service.base_url}/forms/5001/pdf", files.address(5001)
    return {
        "ours to ours": (ours, (service, ours)),
        "ours to theirs": (ours, (service, theirs)),
        "theirs to ours": (theirs, (files, ours)),
        "theirs to theirs": (theirs, (files, theirs)),
        "ours to another port": (ours, (service, theirs.replace("localhost", "127.0.0.1"))),
    }


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "chain", ["ours to ours", "ours to theirs", "theirs to ours", "theirs to theirs", "ours to another port"]
)
def test_a_redirect_is_followed_and_the_token_goes_to_the_service_alone(
    service, client, form, files, caplog, chain, status
):
    caplog.set_level(logging.DEBUG)
    address, (first, second) = chains(service, files)[chain]
    first.fail(*PDFS, faults.Redirect(second, status))

    got = download(client, address, allow_private_addresses=True)

    assert got == service.pdf(form["id"])
    assert len(service.requests) + len(files.requests) == 2
    assert set(tokens_seen(service.requests)) <= {"Bearer ***"}
    assert set(tokens_seen(files.requests)) <= {None}
    assert TOKEN not in repr(files.requests)
    assert TOKEN not in logged(caplog)
    assert "signature" not in logged(caplog)


def test_a_redirect_to_a_private_host_is_not_followed(service, client, form, files):
    service.fail(*PDFS, faults.Redirect(files.address(form["id"])))

    with pytest.raises(FsmAddressError, match="not a public address"):
        download(client, form["formPDFURL"])

    assert files.requests == []


@pytest.mark.parametrize(("redirects", "followed"), [(MOST_REDIRECTS, True), (MOST_REDIRECTS + 1, False)])
def test_so_many_redirects_are_followed(service, client, form, redirects, followed):
    service.fail(*PDFS, faults.Redirect(), calls=range(1, redirects + 1))

    if followed:
        assert download(client, form["formPDFURL"]) == service.pdf(form["id"])
    else:
        with pytest.raises(FsmAddressError, match=r"redirects more than 5 times$"):
            download(client, form["formPDFURL"])

    assert len(service.requests) == MOST_REDIRECTS + 1


def test_a_relative_redirect_is_of_the_host_that_gave_it(service, client, form):
    service.fail(*PDFS, faults.Redirect(urlsplit(form["formPDFURL"]).path + "?again=1"))

    assert download(client, form["formPDFURL"]) == service.pdf(form["id"])
    assert [request.query for request in service.requests] == [(), (("again", "1"),)]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "its record has no formPDFURL"),
        ("", "its record has no formPDFURL"),
        ("/forms/5001/pdf", "none that a request can be sent to"),
        ("https://", "none that a request can be sent to"),
        ("https://files.example.com:port/a.pdf", "none that a request can be sent to"),
        ("ftp://files.example.com/canary", "not one of http or https"),
        (Path(__file__).as_uri(), "not one of http or https"),
        ("https://user:canary@files.example.com/a.pdf", "holds a user or password"),
        ("http://files.example.com/a.pdf?canary", "http://files.example.com is not encrypted"),
        ("http://127.0.0.1.example.com/a.pdf", "is not encrypted"),
        ("https://169.254.169.254/latest/meta-data?canary", "169.254.169.254 is not a public address"),
        ("https://[::ffff:10.0.0.1]/canary", "10.0.0.1 is not a public address"),
    ],
)
def test_an_address_that_is_refused_is_sent_nothing(client, address, said):
    with pytest.raises(FsmAddressError, match=said) as raised:
        download(client, address)

    assert str(raised.value).startswith("the PDF of form 5001: ")
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(
            (inner, False)
            for inner in ("10.1.2.3", "172.16.0.1", "192.168.0.1", "127.0.0.1", "169.254.169.254")
        ),
        *((inner, False) for inner in ("100.64.0.1", "0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255")),
        *(
            (inner, False)
            for inner in (
                "::1",
                "fe80::1%eth0",
                "fd00:ec2::254",
                "ff0e::1",
                "::ffff:127.0.0.1",
                "64:ff9b::a9fe:a9fe",
                "2002:a00:1::",
            )
        ),
        *(
            (outer, True)
            for outer in (
                "93.184.215.14",
                "2606:2800:21f:cb07::1",
                "::ffff:93.184.215.14",
                "64:ff9b::5db8:d70e",
            )
        ),
    ],
)
def test_only_public_addresses_pass(address, public):
    if public:
        refuse_unless_public(address)
    else:
        with pytest.raises(FsmAddressError):
            refuse_unless_public(address)


class Proxy(http.server.BaseHTTPRequestHandler):
    """Answers for any host with a PDF, and keeps what it was asked."""

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%PDF-1.4 by the proxy")

    def log_message(self, *args):
        pass


@pytest.fixture
def proxy(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()


def test_behind_a_proxy_it_is_the_proxy_that_decides_what_a_name_leads_to(service, make_client, proxy):
    client = make_client(service, allow_http=True)

    assert download(client, "http://files.example.com/a.pdf?s=1") == b"%PDF-1.4 by the proxy"
    assert proxy.seen == [("http://files.example.com/a.pdf?s=1", None)]
    with pytest.raises(FsmAddressError, match="not a public address"):
        download(client, "http://10.0.0.1/a.pdf")


def test_a_page_that_pretends_to_be_a_pdf_is_told_at_once(service, client, form):
    page = faults.Body("<!doctype html><title>Log in</title>", content_type="text/html")
    service.fail(*PDFS, page, every=True)

    with pytest.raises(FsmNotPdfError, match=r"form 5001: what came is no PDF, .*\(text/html\)") as raised:
        download(client, form["formPDFURL"])

    assert len(service.requests) == 1
    assert not raised.value.permanent


def test_nothing_at_all_is_no_pdf(service, client, form):
    service.fail(*PDFS, faults.Body(b""))

    with pytest.raises(FsmNotPdfError):
        download(client, form["formPDFURL"])


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_that_is_too_large_is_refused(service, client, form, chunked):
    service.fail(*PDFS, faults.Huge(1_000_000, chunked=chunked))

    with pytest.raises(FsmFileError, match="larger than max_bytes, 300,000") as raised:
        download(client, form["formPDFURL"], max_bytes=300_000)

    assert raised.value.permanent
    assert len(service.requests) == 1


def test_a_file_of_just_the_size_is_taken(service, client, form):
    size = len(service.pdf(form["id"]))

    assert len(download(client, form["formPDFURL"], max_bytes=size)) == size


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (faults.Truncated(), FsmResponseError),
        (faults.Truncated(chunked=True), FsmResponseError),
        (faults.Truncated(at=-1), FsmResponseError),
        (faults.Reset(), FsmResponseError),
        (faults.Status(503), FsmServerError),
        (faults.Status(429, retry_after=3), FsmRateLimitedError),
    ],
)
def test_what_may_pass_is_tried_again_from_the_beginning(service, client, form, fault, kind):
    service.fail(*PDFS, fault, call=1)
    assert download(client, form["formPDFURL"]) == service.pdf(form["id"])

    service.fail(*PDFS, fault, every=True)
    with pytest.raises(kind, match="the PDF of form 5001"):
        download(client, form["formPDFURL"])

    assert len(service.requests) == 2 + 3


def test_a_host_that_is_not_reached_is_named(client, form, files):
    address = files.address(form["id"])
    with files.refuse_connections(), pytest.raises(FsmConnectionError) as raised:
        download(client, address, allow_private_addresses=True)

    host = urlsplit(address).netloc
    assert str(raised.value).startswith(f"the PDF of form 5001: http://{host} was not reached: ")
    assert "signature" not in str(raised.value)


def test_a_refusal_by_the_service_says_what_is_wrong_with_the_connection(service, client, form):
    service.fail(*PDFS, faults.Status(403, form["formPDFURL"]))

    with pytest.raises(FsmForbiddenError, match="GET the PDF of form 5001 was answered 403; the token lacks"):
        download(client, form["formPDFURL"])


def test_a_refusal_by_another_host_neither_blames_the_token_nor_shows_the_address(
    client, form, files, caplog
):
    caplog.set_level(logging.DEBUG)
    files.lifetime = -1

    with pytest.raises(FsmApiError) as raised:
        download(client, files.address(form["id"]), allow_private_addresses=True)

    assert type(raised.value) is FsmApiError
    assert str(raised.value) == "GET the PDF of form 5001 was answered 403"
    assert "signature" not in logged(caplog)


def test_other_hosts_do_not_count_for_the_services_requests_a_second(service, make_client, form, files):
    waits = []
    client = make_client(service, sleep=waits.append, max_requests_per_second=100)

    download(client, files.address(form["id"]), allow_private_addresses=True)
    assert waits == []
    download(client, form["formPDFURL"])
    assert len(waits) == 1
