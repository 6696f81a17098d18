"""Deliveries that are not to be accepted, of many kinds, drawn from a seed."""

import base64
import hashlib
import hmac
import json
import random
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import requests
from requests import Session

from fsm_provider.testing.delivering import standard_webhooks

Status = int | None

MALFORMED_SIGNATURES = (
    *("", "v1", "v1,", "v1,===", "v2,AAAA", "\xe9", ",,,"),
    *("v1," + "A" * 5000, "v1,AAAA " * 500),
)


class Forger:
    """Makes deliveries that are not to be accepted; it knows all that a thief of the path token knows."""

    def __init__(self, webhook: dict, draw: random.Random) -> None:
        self.url = webhook["targetURL"]
        self.secret = webhook["signingSecret"]
        self.draw = draw
        self.kinds = [
            self.other_token,
            self.other_route,
            self.other_secret,
            self.other_body,
            self.other_identifier,
            self.other_time,
            self.stale,
            self.from_the_future,
            self.without_signature,
            self.malformed_signature,
            self.malformed_body,
            self.compressed,
            self.oversized,
            self.oversized_chunked,
            self.wrong_method,
            self.truncated,
            self.no_http,
            self.replay,
        ]

    def capture(self, session: Session) -> None:
        """Make the right delivery that is replayed."""
        body = self.body()
        self.captured = (self.headers(body), body)
        assert self.post(session, body, self.captured[0]) == 200

    def headers(self, body: bytes, secret: str | None = None, *, at: float | None = None) -> dict[str, str]:
        timestamp = int(time.time() if at is None else at)
        return standard_webhooks(secret or self.secret, self.identifier(), timestamp, body)

    def identifier(self) -> str:
        return f"msg_{self.draw.getrandbits(64):x}"

    def body(self) -> bytes:
        return json.dumps({"type": "jobs.created", "data": {"id": self.draw.randrange(10**6)}}).encode()

    def post(
        self, session: Session, body: Any, headers: Any, *, token: str | None = None, **kwargs: Any
    ) -> Status:
        """Send it, and give the status; None where the server ended the connection rather than read on."""
        url = self.url if token is None else self.url.rpartition("/")[0] + "/" + token
        kwargs = {"method": "POST", "url": url, **kwargs}
        try:
            response = session.request(data=body, headers=headers, timeout=15, **kwargs)
        except requests.ConnectionError:
            return None
        if response.status_code != 200 and kwargs["method"] != "HEAD":
            assert response.text in ('{"accepted": false}', "Invalid HTTP request received."), response.text
        return response.status_code

    def other_token(self, session: Session) -> Status:
        body, token = self.body(), self.url.rpartition("/")[2]
        guess = self.draw.choice([token[:-1], token + "A", token.swapcase(), "A" * 43, "", "%00", "../x"])
        return self.post(session, body, self.headers(body), token=guess or "/")

    def other_route(self, session: Session) -> Status:
        body, token = self.body(), self.url.rpartition("/")[2]
        host = self.url.partition("/fsm/")[0]
        route = self.draw.choice(["fsm_default/assets", "fsm_other/jobs", "jobs", "fsm_default/jobs/x"])
        return self.post(session, body, self.headers(body), url=f"{host}/fsm/webhooks/{route}/{token}")

    def other_secret(self, session: Session) -> Status:
        body = self.body()
        secret = "whsec_" + base64.b64encode(self.draw.randbytes(24)).decode()
        return self.post(session, body, self.headers(body, secret))

    def other_body(self, session: Session) -> Status:
        return self.post(session, self.body() + b" ", self.headers(self.body()))

    def other_identifier(self, session: Session) -> Status:
        body = self.body()
        return self.post(session, body, {**self.headers(body), "webhook-id": self.identifier()})

    def other_time(self, session: Session) -> Status:
        body = self.body()
        return self.post(
            session,
            body,
            {**self.headers(body, at=time.time() - 900), "webhook-timestamp": str(int(time.time()))},
        )

    def stale(self, session: Session) -> Status:
        body = self.body()
        return self.post(session, body, self.headers(body, at=time.time() - self.draw.uniform(310, 10**6)))

    def from_the_future(self, session: Session) -> Status:
        body = self.body()
        return self.post(session, body, self.headers(body, at=time.time() + self.draw.uniform(330, 10**6)))

    def without_signature(self, session: Session) -> Status:
        body = self.body()
        headers = self.headers(body)
        del headers[self.draw.choice(list(headers))]
        return self.post(session, body, headers)

    def malformed_signature(self, session: Session) -> Status:
        body = self.body()
        wrong = self.draw.choice(MALFORMED_SIGNATURES)
        return self.post(session, body, {**self.headers(body), "webhook-signature": wrong.encode("latin-1")})

    def malformed_body(self, session: Session) -> Status:
        body = self.draw.randbytes(self.draw.randrange(1, 2000))
        signature = hmac.new(b"guess", body, hashlib.sha256).digest()
        wrong = {"webhook-signature": f"v1,{base64.b64encode(signature).decode()}"}
        return self.post(session, body, {**self.headers(b""), **wrong})

    def compressed(self, session: Session) -> Status:
        body = self.body()
        return self.post(session, body, {**self.headers(body), "Content-Encoding": "gzip"})

    def oversized(self, session: Session) -> Status:
        body = b"x" * (2**20 + 1)
        return self.post(session, body, self.headers(body))

    def oversized_chunked(self, session: Session) -> Status:
        body = b"x" * (2**20 + 1)
        return self.post(session, iter([body[: 2**19], body[2**19 :]]), self.headers(body))

    def wrong_method(self, session: Session) -> Status:
        body = self.body()
        method = self.draw.choice(["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
        return self.post(session, body, self.headers(body), method=method)

    def truncated(self, session: Session) -> Status:
        body = self.body()
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers(body).items())
        path = urlsplit(self.url).path
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return self.raw(head.encode() + body[:-1])

    def no_http(self, session: Session) -> Status:
        path = urlsplit(self.url).path
        lines = [b"\x16\x03\x01\x02\x00", b"POST\r\n\r\n", f"POST {path}\r\n\r\n".encode()]
        return self.raw(self.draw.choice([*lines, self.draw.randbytes(50)]))

    def replay(self, session: Session) -> Status:
        headers, body = self.captured
        return self.post(session, body, headers)

    def raw(self, request: bytes) -> Status:
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=15) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            response = b""
            while part := connection.recv(65536):
                response += part
        return int(response.split()[1]) if response.startswith(b"HTTP/1.1 ") else None
