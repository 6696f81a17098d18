"""A service in a process of its own that does next to nothing but send bytes rendered beforehand.

``/pages/<first>/<stop>/<latency in ms>/forms`` lists the pages from ``first`` up to ``stop``, and
``/shuffled/0/<stop>/...`` the same forms in no order;
``.../forms/<id>/pdf`` is a PDF; ``.../properties/<id>/jobs`` takes jobs; ``/counts`` returns what came,
without counting itself.
``/growing/<start in ms>/<every ms>/<latency in ms>/forms`` lists, in one page, what is completed by now: the
form of job n at start + n x every, n from 1. It takes ``jobID``; ``.../forms/<n>`` is 404 until then. A start
of 0 is the one that ``/start/<ms>`` set last.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tests.benchmarks import pages

TOKEN = "a-token-of-the-usual-length-0123456789"
_CURSOR = re.compile(rb"[?&]cursor=(\d+)")
_JOB = re.compile(rb"[?&]jobID=(\d+)")
_PDF = b"%PDF-1.4\n".ljust(20_000)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Counts(NamedTuple):
    """What a service has seen."""

    connections: int
    requests: int


@dataclass(frozen=True, slots=True)
class Service:
    """A running service, seen from another process."""

    port: int

    def listing(self, first: int, stop: int, latency_ms: int = 0) -> str:
        """Give the base URL under which the forms of those pages are listed."""
        return f"http://127.0.0.1:{self.port}/pages/{first}/{stop}/{latency_ms}"

    def shuffled(self, stop: int) -> str:
        """Give the base URL under which the forms of the first pages are listed in no order."""
        return f"http://127.0.0.1:{self.port}/shuffled/0/{stop}/0"

    def growing(self, start: float, every: float, latency_ms: int = 0) -> str:
        """Give the base URL under which job n has a form ``every`` x n seconds after ``start``.

        A ``start`` of 0 is set later, by :meth:`start`.
        """
        return f"http://127.0.0.1:{self.port}/growing/{start * 1000:.0f}/{every * 1000:.0f}/{latency_ms}"

    def start(self, start: float | None) -> None:
        """Set the start of what grows; None: not yet."""
        self._ask(f"/start/{2**53 if start is None else start * 1000:.0f}")

    def counts(self) -> Counts:
        """Return what has come so far."""
        return Counts(*self._ask("/counts"))

    def _ask(self, path: str) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        response: list[int] = json.loads(connection.getresponse().read())
        connection.close()
        return response


@contextmanager
def running_service(page_count: int, job_count: int) -> Iterator[Service]:
    """Run a service with so many pages of forms and so many jobs to give."""
    command = [sys.executable, "-m", "tests.benchmarks.server", str(page_count), str(job_count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            port = process.stdout.readline()
            if not port:
                raise RuntimeError("the benchmark's service did not start")
            yield Service(int(port))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, page_count: int, job_count: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.forms = [form for page in range(page_count) for form in pages.forms_of_page(page)]
        self.jobs = [pages.job(property_id) for property_id in range(job_count)]
        self.connections = 0
        self.requests = 0
        self.start_ms = 2**53


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._is_counted = False

    def handle(self) -> None:
        while target := self._next_target():
            if target == b"/counts":
                self._respond(200, json.dumps([self.server.connections, self.server.requests]).encode())
            elif target.startswith(b"/start/"):
                self.server.start_ms = int(target.rpartition(b"/")[2])
                self._respond(200, b"[]")
            else:
                self._count()
                self._serve(target)

    def _next_target(self) -> bytes | None:
        """Read one request, its body too, and give its target; None where the client has closed."""
        try:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                self._receive()
            length = _LENGTH.search(self._buffer, 0, end + 2)
            end_of_body = end + 4 + (int(length[1]) if length else 0)
            while len(self._buffer) < end_of_body:
                self._receive()
        except ConnectionError:
            return None
        target = self._buffer.split(b" ", 2)[1]
        self._buffer = self._buffer[end_of_body:]
        return target

    def _receive(self) -> None:
        received = self.request.recv(65_536)
        if not received:
            raise ConnectionError
        self._buffer += received

    def _serve(self, target: bytes) -> None:
        path = target.partition(b"?")[0].decode()
        _, kind, first, stop, latency_ms, *rest = path.split("/")
        time.sleep(int(latency_ms) / 1000)
        if kind == "growing":
            job = _JOB.search(target)
            numbers = [int(rest[1])] if rest[1:] else [int(job[1])] if job else None
            forms = pages.forms_by_now(int(first) or self.server.start_ms, int(stop), numbers)
            found = 404 if rest[1:] and not forms else 200
            self._respond(found, pages.response(0, 1, forms))
        elif rest[-1] == "pdf":
            self._respond(200, _PDF)
        elif rest[0] == "forms":
            cursor = _CURSOR.search(target)
            page = int(cursor[1]) if cursor else int(first)
            listed = pages.numbers_of_page(page, int(stop), shuffled=kind == "shuffled")
            forms = [self.server.forms[number] for number in listed]
            self._respond(200, pages.response(page, int(stop), forms))
        else:
            self._respond(201, self.server.jobs[int(rest[1])])

    def _count(self) -> None:
        self.server.requests += 1
        if not self._is_counted:
            self._is_counted = True
            self.server.connections += 1

    def _respond(self, status: int, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status} OK\r\nDate: Mon, 05 Jan 2026 07:30:00 GMT\r\n"
            "Content-Type: application/json; charset=utf-8\r\n"
            f"X-Request-ID: {self.server.requests:032x}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.request.sendall(head.encode() + body)


if __name__ == "__main__":
    with _Server(*map(int, sys.argv[1:])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()  # ends when the parent closes it, or dies
