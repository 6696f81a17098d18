"""Deliveries that are not to be accepted, of many kinds, drawn from a seed.

Headers that are malformed, missing, changed or too old are in ``tests/unit/plugins/test_signature.py``.
"""

import base64
import json
import random
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests import Session

from fsm_provider.testing.delivering import standard_webhooks

Status = int | None
LARGE = b"x" * (2**20 + 1)
ROUTES = ("fsm_default/assets", "fsm_other/jobs", "jobs", "fsm_default/jobs/x")
METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")


class Forger:
    """Makes deliveries that are not to be accepted; it knows all that a thief of the path token knows."""

    def __init__(self, webhook: dict, draw: random.Random) -> None:
        self.url: str = webhook["targetURL"]
        self.secret: str = webhook["signingSecret"]
        self.draw = draw

    def forge(self, session: Session, kind: str) -> Status:
        """Send a delivery of a kind, and give the status; None where the server ended the connection."""
        body = self.body()
        changed = KINDS[kind](self, body)
        if isinstance(changed, bytes):
            return self._send_bytes(changed)
        return self.post(session, **{"data": body, "headers": self.headers(body), **changed})

    def capture(self, session: Session) -> None:
        """Make the right delivery that is replayed."""
        body = self.body()
        self.captured = {"data": body, "headers": self.headers(body)}
        assert self.post(session, **self.captured) == 200

    def headers(self, body: bytes, *, secret: str | None = None) -> dict[str, str]:
        """Sign a body."""
        identifier = f"msg_{self.draw.getrandbits(64):x}"
        return standard_webhooks(secret or self.secret, identifier, int(time.time()), body)

    def body(self) -> bytes:
        return json.dumps({"type": "jobs.created", "data": {"id": self.draw.randrange(10**6)}}).encode()

    def with_token(self, token: str) -> str:
        return f"{self.url.rpartition('/')[0]}/{token}"

    def post(self, session: Session, *, method: str = "POST", url: str = "", **arguments: Any) -> Status:
        """Send it, and give the status; None where the server ended the connection rather than read on."""
        try:
            response = session.request(method, url or self.url, timeout=60, **arguments)
        except requests.ConnectionError:
            return None
        if response.status_code != 200 and method != "HEAD":
            assert response.text in ('{"accepted": false}', "Invalid HTTP request received."), response.text
        return response.status_code

    def without_end(self, body: bytes) -> bytes:
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers(body).items())
        head = (
            f"POST {urlsplit(self.url).path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}"
        )
        return f"{head}\r\n".encode() + body[:-1]

    def _send_bytes(self, request: bytes) -> Status:
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            response = b""
            while part := connection.recv(65536):
                response += part
        return int(response.split()[1]) if response.startswith(b"HTTP/1.1 ") else None


def _other_token(forger: Forger, body: bytes) -> dict[str, str]:
    token = forger.url.rpartition("/")[2]
    guesses = [token[:-1], token + "A", token.swapcase(), "A" * 43, "/", "%00", "../x"]
    return {"url": forger.with_token(forger.draw.choice(guesses))}


def _other_secret(forger: Forger, body: bytes) -> dict[str, Any]:
    secret = "whsec_" + base64.b64encode(forger.draw.randbytes(24)).decode()
    return {"headers": forger.headers(body, secret=secret)}


def _no_http(forger: Forger, body: bytes) -> bytes:
    lines = [b"\x16\x03\x01\x02\x00", b"POST\r\n\r\n", f"POST {urlsplit(forger.url).path}\r\n\r\n".encode()]
    return forger.draw.choice([*lines, forger.draw.randbytes(50)])


KINDS: dict[str, Callable[[Forger, bytes], dict[str, Any] | bytes]] = {
    "other token": _other_token,
    "other route": lambda forger, body: {
        "url": forger.url.replace("fsm_default/jobs", forger.draw.choice(ROUTES))
    },
    "other secret": _other_secret,
    "other body": lambda forger, body: {"data": body + b" "},
    "no JSON": lambda forger, body: {"data": forger.draw.randbytes(forger.draw.randrange(1, 2000))},
    "compressed": lambda forger, body: {"headers": forger.headers(body) | {"Content-Encoding": "gzip"}},
    "oversized": lambda forger, body: {"data": LARGE, "headers": forger.headers(LARGE)},
    "oversized, chunked": lambda forger, body: {
        "data": iter([LARGE[: 2**19], LARGE[2**19 :]]),
        "headers": forger.headers(LARGE),
    },
    "wrong method": lambda forger, body: {"method": forger.draw.choice(METHODS)},
    "truncated": Forger.without_end,
    "no HTTP": _no_http,
    "replay": lambda forger, body: forger.captured,
}
