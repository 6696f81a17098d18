"""The request path without a session keeps TLS, CA bundles, proxies, timeouts and the token."""

import re
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPResponse

import psutil
import pytest
from urllib3.connection import HTTPConnection

from fsm_provider.api import FsmClient, FsmConnectionError, FsmResponseError, Settings
from fsm_provider.testing import faults
from tests.unit.api.raw_server import RawServer, http
from tests.unit.conftest import TOKEN

EMPTY_PAGE = {"pagination": {"hasMore": "false"}, "data": []}


def send_empty_page(connection: socket.socket, *_: object) -> None:
    connection.sendall(http(200, EMPTY_PAGE))


@pytest.fixture
def server() -> Iterator[RawServer]:
    """A server that answers every request with an empty listing."""
    with RawServer(send_empty_page) as running:
        yield running


@pytest.fixture
def secure(tls_context: ssl.SSLContext) -> Iterator[RawServer]:
    """The same with the certificate that no one trusts yet."""
    with RawServer(send_empty_page, tls=tls_context) as running:
        yield running


def assert_one_request_with_the_token(server: RawServer, target: str) -> None:
    [request] = server.requests
    head = request.head.decode()
    assert head.split()[1] == target
    assert re.search(r"Authorization: ([^\r]*)", head)[1] == f"Bearer {TOKEN}"


def list_forms(base_url: str, **settings) -> list:
    values = {"base_url": base_url, "token": TOKEN, "max_retries": 0, **settings}
    with FsmClient(Settings.parse(values)) as client:
        return list(client.list_forms())


def test_a_certificate_that_no_one_vouches_for_is_refused(secure):
    with pytest.raises(FsmConnectionError, match="certificate verify failed"):
        list_forms(secure.base_url)
    assert secure.requests == []


def test_a_host_that_speaks_http_is_guessed(service):
    base_url = service.base_url.replace("http:", "https:")
    guess = r"WRONG_VERSION_NUMBER.*; if it speaks http, begin host with http://$"

    with pytest.raises(FsmConnectionError, match=guess):
        list_forms(base_url)


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environments_ca_bundle_vouches(secure, certificate, monkeypatch, name):
    monkeypatch.setenv(name, str(certificate))

    assert list_forms(secure.base_url) == []


def test_the_connections_ca_bundle_goes_before_the_environments(
    secure, certificate, monkeypatch, tmp_path
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "there-is-none.pem"))

    assert list_forms(secure.base_url, ca_bundle=str(certificate)) == []


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_no_certificate_is_asked_for_where_that_is_switched_off(secure, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    base_url = secure.base_url.replace("127.0.0.1", "localhost")

    assert list_forms(base_url, verify_ssl=False) == []


def test_the_environments_proxy_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.base_url)

    list_forms("http://api.example.test/v1", allow_http=True)

    assert_one_request_with_the_token(server, "http://api.example.test/v1/forms")


def test_a_closed_client_has_no_connection_and_can_be_used_again(server):
    settings = Settings.parse({"base_url": server.base_url, "token": TOKEN})
    client = FsmClient(settings)
    for _ in range(2):
        assert list(client.list_forms()) == []
        assert len(connections_to(server)) == 1
        client.close()
        assert connections_to(server) == []


def connections_to(server):
    """Return the established connections of this process to a server."""
    connections = []
    for connection in psutil.Process().net_connections("tcp4"):
        if not connection.raddr or connection.status != psutil.CONN_ESTABLISHED:
            continue
        if server.base_url.endswith(f":{connection.raddr.port}"):
            connections.append(connection)
    return connections


def test_no_proxy_is_heeded(secure, certificate, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert list_forms(secure.base_url, ca_bundle=str(certificate)) == []


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_http_to_this_machine_goes_through_no_proxy(server, monkeypatch, name, host):
    base_url = server.base_url.replace("127.0.0.1", host)
    with RawServer(send_empty_page) as proxy:
        monkeypatch.setenv(name, proxy.base_url)

        assert list_forms(base_url) == []
        assert proxy.requests == []
    assert_one_request_with_the_token(server, "/forms")


def test_a_netrc_does_not_replace_the_token(server, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))

    list_forms(server.base_url)

    assert_one_request_with_the_token(server, "/forms")


def test_silence_ends_at_the_timeout(service, make_client):
    service.fail("GET", "/forms", faults.Stall(headers_first=True))
    client = make_client(service, timeout=0.2, max_retries=0)

    with pytest.raises(FsmResponseError, match=r"timed out.*\(timeout 0\.2 s\)"):
        list(client.list_forms())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (HTTPConnection, "_new_conn"),
        (HTTPConnection("localhost"), "_tunnel_host"),
        (HTTPResponse, "_close_conn"),
    ],
)
def test_a_private_part_that_is_overridden_or_read_is_there(owner, name):
    assert hasattr(owner, name)
