"""A clock for the throttle; a certificate."""

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fsm_provider.api import throttling

ENVIRONMENT = (
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NETRC",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
)
"""Variables that change how a request is sent."""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


class Clock:
    """A fake clock for the throttle."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(throttling, "time", stopped)
    return stopped


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that no one trusts yet; its key is beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fsm test")])
    now = datetime.datetime.now(datetime.UTC)
    a_day = datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

    builder = x509.CertificateBuilder()
    builder = builder.subject_name(name)
    builder = builder.issuer_name(name)
    builder = builder.public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - a_day)
    builder = builder.not_valid_after(now + a_day)
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    authority = x509.BasicConstraints(ca=True, path_length=None)
    builder = builder.add_extension(authority, critical=True)
    signed = builder.sign(key, hashes.SHA256())

    private_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    path.with_name("key.pem").write_bytes(private_key)
    return path


@pytest.fixture
def tls_context(certificate: Path) -> ssl.SSLContext:
    """What a server speaks TLS with."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context
