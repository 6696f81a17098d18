"""The request path without a session keeps TLS, CA bundles, proxies, timeouts and the token."""

import http.server
import ssl
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fsm_provider.api import FsmClient, FsmConnectionError, FsmResponseError, Settings
from fsm_provider.api.transport import seconds_to_wait
from fsm_provider.testing import faults
from tests.http_server import serving
from tests.unit.conftest import TOKEN

EMPTY_PAGE = b'{"pagination": {"hasMore": "false"}, "data": []}'


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers every GET with an empty listing, and records its request line and token."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(EMPTY_PAGE)))
        self.end_headers()
        self.wfile.write(EMPTY_PAGE)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Recorder)
        self.seen = []

    def handle_error(self, request, client_address):
        """A client that refuses the certificate is what a test asks for."""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as running:
        yield running


@pytest.fixture
def certificate(certificate: Path, tls_context: ssl.SSLContext, server: Server) -> Path:
    """A certificate of 127.0.0.1 that no one trusts yet; the server speaks TLS with it."""
    server.socket = tls_context.wrap_socket(server.socket, server_side=True)
    return certificate


def list_forms(base_url: str, **settings) -> list:
    checked = Settings.checked({"base_url": base_url, "token": TOKEN, "max_retries": 0, **settings})
    with FsmClient(checked) as client:
        return list(client.list_forms())


def https(server: Server) -> str:
    return f"https://127.0.0.1:{server.server_port}"


def test_a_certificate_that_no_one_vouches_for_is_refused(server, certificate):
    with pytest.raises(FsmConnectionError, match="certificate verify failed"):
        list_forms(https(server))
    assert server.seen == []


def test_the_connections_ca_bundle_vouches(server, certificate):
    assert list_forms(https(server), ca_bundle=str(certificate)) == []


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environments_ca_bundle_vouches(server, certificate, monkeypatch, name):
    monkeypatch.setenv(name, str(certificate))

    assert list_forms(https(server)) == []


def test_the_connections_ca_bundle_goes_before_the_environments(server, certificate, monkeypatch, tmp_path):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "there-is-none.pem"))

    assert list_forms(https(server), ca_bundle=str(certificate)) == []


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_no_certificate_is_asked_for_where_that_is_switched_off(server, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))

    assert list_forms(https(server).replace("127.0.0.1", "localhost"), verify_ssl=False) == []


def test_the_environments_proxy_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")

    list_forms("http://api.example.test/v1", allow_http=True)

    assert server.seen == [("http://api.example.test/v1/forms", f"Bearer {TOKEN}")]


def test_a_closed_client_has_no_connection_and_can_be_used_again(server):
    settings = Settings.checked({"base_url": f"http://127.0.0.1:{server.server_port}", "token": TOKEN})
    client = FsmClient(settings)
    for _ in range(2):
        assert list(client.list_forms()) == []
        assert len(connections_to(server)) == 1
        client.close()
        assert connections_to(server) == []


def connections_to(server):
    found = psutil.Process().net_connections("tcp4")
    mine = [one for one in found if one.raddr and one.raddr.port == server.server_port]
    return [one for one in mine if one.status == psutil.CONN_ESTABLISHED]


def test_no_proxy_is_heeded(server, certificate, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert list_forms(https(server), ca_bundle=str(certificate)) == []


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("settings", [{}, {"allow_http": True}], ids=str)
def test_http_to_this_machine_goes_through_no_proxy(server, monkeypatch, name, host, settings):
    with serving(Server()) as proxy:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")

        assert list_forms(f"http://{host}:{server.server_port}", **settings) == []
        assert proxy.seen == []
    assert server.seen == [("/forms", f"Bearer {TOKEN}")]


def test_a_proxy_that_is_down_is_a_connection_error(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    with pytest.raises(FsmConnectionError):
        list_forms("https://api.example.test")


def test_a_netrc_does_not_replace_the_token(server, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))

    list_forms(f"http://127.0.0.1:{server.server_port}")

    assert server.seen == [("/forms", f"Bearer {TOKEN}")]


def test_silence_ends_at_the_timeout(service, make_client):
    service.fail("GET", "/forms", faults.Stall(headers_first=True))

    with pytest.raises(FsmResponseError, match=r"timed out.*\(timeout 0\.2 s\)"):
        list(make_client(service, timeout=0.2, max_retries=0).list_forms())


def test_a_compressed_response_is_read(service, make_client):
    form = service.add_form(job_id=1)
    service.fail("GET", "/forms", faults.Gzip())

    assert [found.id for found in make_client(service).list_forms()] == [form["id"]]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": " 0 "}, 0),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "Fri, 20 Nov 2026 10:00:30 GMT", "Date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30),
        ({"Retry-After": "Fri Nov 20 10:00:30 2026", "Date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30),
        ({"Retry-After": "Fri, 20 Nov 2026 09:00:00 GMT", "Date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 0),
        ({"Retry-After": "Fri, 20 Nov 2026 10:00:30 GMT", "Date": "today"}, None),
        ({"Retry-After": "in a while"}, None),
    ],
)
def test_retry_after_is_read_against_the_services_clock(headers, seconds):
    assert seconds_to_wait(headers) == seconds
