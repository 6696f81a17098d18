"""A server that answers with the very bytes that a test gives it, over a real socket."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from fsm_provider.api import Form, FsmClient

Part = bytes | Callable[[threading.Event], bytes]


@dataclass(frozen=True)
class Request:
    """A complete request, and the number of its connection, from 1."""

    connection: int
    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.partition(b"\r\n")[0].decode()


class RawServer:
    """Reads requests, and has ``respond`` write what it likes.

    :param respond: called with the socket, the request and its number.
    :param tls: speaks TLS.
    """

    def __init__(
        self,
        respond: Callable[[socket.socket, Request, int], Any],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self._respond = respond
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._accepted = 0
        self._forgotten: set[int] = set()
        self._threads: list[threading.Thread] = []

    @property
    def base_url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def forget_connections(self) -> None:
        """Reset each connection of now at its next byte.

        That is what a load balancer does that has dropped its entry of the connection.
        """
        self._forgotten.update(range(self._accepted + 1))

    def __enter__(self) -> Self:
        self._start_thread(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for open_socket in [self._listener, *self._open]:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        for thread in self._threads:
            thread.join(5)

    def _start_thread(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self._accepted += 1
                self._start_thread(self._serve, accepted, self._accepted)

    def _serve(self, accepted: socket.socket, number: int) -> None:
        with suppress(OSError), accepted:
            connection = accepted
            if self._tls:
                connection = self._tls.wrap_socket(accepted, server_side=True)
            self._open.append(connection)
            with connection:
                request = self._read(connection, number)
                while request is not None:
                    self.requests.append(request)
                    self._respond(connection, request, len(self.requests))
                    request = self._read(connection, number)

    def _read(self, connection: socket.socket, number: int) -> Request | None:
        received = b""
        while b"\r\n\r\n" not in received:
            part = connection.recv(65536)
            if not part:
                return None
            if number in self._forgotten:
                reset(connection)
                return None
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
        while len(body) < length:
            body += connection.recv(65536)
        return Request(number, head, body)


def reset(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def http(status: int, body: Any = b"", *headers: str) -> bytes:
    """Write a response; what is no bytes as JSON."""
    content = body
    if not isinstance(body, bytes):
        content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Something", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


@contextmanager
def raw_server(*parts: Part, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Respond to each request with these bytes, then close; gives a signed URL.

    :param parts: bytes, or what gives them, called when they are due with an event that ends the
        test.
    """
    ended = threading.Event()

    def respond(connection: socket.socket, *_: object) -> None:
        for part in parts:
            content = part if isinstance(part, bytes) else part(ended)
            connection.sendall(content)
        connection.close()

    with RawServer(respond, tls=tls) as server:
        try:
            yield f"{server.base_url}/a.pdf?signature=canary"
        finally:
            ended.set()


def drip(content: bytes, *, every: float) -> list[Part]:
    """Give the parts of a content that comes byte by byte, ``every`` so many seconds."""

    def due(byte: int) -> Part:
        def wait(ended: threading.Event) -> bytes:
            if ended.wait(every):
                raise ConnectionAbortedError
            return bytes([byte])

        return wait

    return list(map(due, content))


def download(client: FsmClient, url: str | None, **limits: Any) -> bytes:
    """Fetch the PDF of form 5001, whose record has this URL."""
    form = Form.model_validate({"id": 5001, "formPDFURL": url})
    return client.download_pdf(form, b"".join, **limits)
