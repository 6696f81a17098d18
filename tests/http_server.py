"""A server of the standard library in a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from threading import Thread
from typing import TypeVar

Server = TypeVar("Server", bound=HTTPServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Answer requests while the body runs, then close the server."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
