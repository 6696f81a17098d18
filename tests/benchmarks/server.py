"""A service in a process of its own that does next to nothing but send bytes rendered beforehand.

``/pages/<first>/<stop>/<latency in ms>/forms`` lists the pages from ``first`` up to ``stop``, and
``/shuffled/0/<stop>/0/forms`` the same forms in no order; ``.../properties/<id>/jobs`` takes jobs;
``/requests`` returns how many came, without counting itself. ``/growing/<start in ms>/<every
ms>/0/forms`` lists, in one page, what is completed by now: form n at start + n x every, n from 1;
with ``jobID``, nothing.
"""

from __future__ import annotations

import http.client
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

from tests.benchmarks import pages

TOKEN = "a-token-of-the-usual-length-0123456789"
AUTHORISATION = {"Authorization": f"Bearer {TOKEN}"}
_CURSOR = re.compile(rb"[?&]cursor=(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Service:
    """A running service, seen from another process."""

    port: int

    def url(self, first: int, stop: int, latency_ms: int = 0, kind: str = "pages") -> str:
        """Give the base URL of a listing."""
        return f"http://127.0.0.1:{self.port}/{kind}/{first}/{stop}/{latency_ms}"

    def requests(self) -> int:
        """Return how many requests have come so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/requests")
        count = int(connection.getresponse().read())
        connection.close()
        return count


@contextmanager
def running_service(page_count: int, job_count: int) -> Iterator[Service]:
    """Run a service with so many pages of forms and so many jobs to give."""
    command = [sys.executable, "-m", "tests.benchmarks.server", str(page_count), str(job_count)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
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
        self.forms: list[bytes] = []
        for page in range(page_count):
            self.forms += pages.forms_of_page(page)
        self.jobs = [pages.job(property_id) for property_id in range(job_count)]
        self.requests = 0


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def handle(self) -> None:
        while True:
            target = self._next_target()
            if target is None:
                return
            if target == b"/requests":
                self._respond(200, str(self.server.requests).encode())
            else:
                self.server.requests += 1
                self._serve(target)

    def _next_target(self) -> bytes | None:
        """Read one request, its body too, and give its target; None where the client has closed."""
        try:
            while b"\r\n\r\n" not in self._buffer:
                self._receive()
            end_of_head = self._buffer.index(b"\r\n\r\n") + 4
            length = _LENGTH.search(self._buffer, 0, end_of_head - 2)
            end_of_body = end_of_head + int(length[1]) if length else end_of_head
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
            forms = [] if b"jobID=" in target else pages.forms_by_now(int(first), int(stop))
            self._respond(200, pages.response(0, 1, forms, len(forms)))
        elif rest[0] == "forms":
            cursor = _CURSOR.search(target)
            page = int(cursor[1]) if cursor else int(first)
            listed = pages.numbers_of_page(page, int(stop), shuffled=kind == "shuffled")
            forms = [self.server.forms[number] for number in listed]
            self._respond(200, pages.response(page, int(stop), forms))
        else:
            self._respond(201, self.server.jobs[int(rest[1])])

    def _respond(self, status: int, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status} OK\r\nDate: Mon, 05 Jan 2026 07:30:00 GMT\r\n"
            "Content-Type: application/json; charset=utf-8\r\n"
            f"X-Request-ID: {self.server.requests:032x}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.request.sendall(head.encode() + body)


if __name__ == "__main__":
    page_count, job_count = sys.argv[1:]
    with _Server(int(page_count), int(job_count)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()  # ends when the parent closes it, or dies
