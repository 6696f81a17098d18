"""What a client receives on a connection, byte by byte."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from fsm_provider.testing import FakeFieldService

JOBS = ("POST", "/properties/*/jobs")
SHORT = 0.3
"""Seconds of silence that pass for a connection left open."""


@dataclass(frozen=True)
class Received:
    """Bytes received and how they ended: ``complete``, ``closed``, ``reset`` or ``silence``.

    Complete is a response of the length it promised; whether the connection is then closed isn't
    waited for. Seconds are counted from before the request was sent.
    """

    data: bytes
    end: str
    seconds: float

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def promised(self) -> int:
        return int(self.header("content-length"))

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").splitlines()[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return None


class RawConnection:
    """A TCP connection to the service."""

    def __init__(self, service: FakeFieldService) -> None:
        self.token = service.settings.token
        host, _, port = service.base_url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        self._began = time.monotonic()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, method: str, path: str, body: bytes = b"{}") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: fake\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._began = time.monotonic()
        self.socket.sendall(head.encode() + body)

    def send_job(self) -> None:
        self.send("POST", "/properties/1/jobs")

    def receive(self, timeout: float = 5) -> Received:
        """Receive until a response is complete or nothing comes any more."""
        self.socket.settimeout(timeout)
        data = b""
        try:
            while True:
                chunk = self.socket.recv(65536)
                if not chunk:
                    return self._received(data, "closed")
                data += chunk
                response = self._received(data, "complete")
                if response.header("content-length") == str(len(response.body)):
                    return response
        except ConnectionResetError:
            return self._received(data, "reset")
        except TimeoutError:
            return self._received(data, "silence")

    def _received(self, data: bytes, end: str) -> Received:
        return Received(data, end, time.monotonic() - self._began)


def create_job(service: FakeFieldService, *, timeout: float = 5) -> Received:
    """Create a job on a connection of its own."""
    with RawConnection(service) as connection:
        connection.send_job()
        return connection.receive(timeout)


def recorded_statuses(service: FakeFieldService) -> list[int | None]:
    """Return the statuses of all requests, in order."""
    return [request.status for request in service.requests]
