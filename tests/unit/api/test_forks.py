"""A client that was used before a fork: each process has connections of its own."""

import multiprocessing
import threading
import warnings

import pytest

from fsm_provider.api import FsmClient, FsmError, Settings
from tests.unit.api.raw_server import RawServer, http
from tests.unit.conftest import TOKEN

CHILDREN = 4
forking = multiprocessing.get_context("fork")


@pytest.fixture(params=["http", "https", "through a proxy"])
def client(request, monkeypatch):
    """A client of a service that answers slowly with the path of the request."""

    def respond(connection, received, _):
        threading.Event().wait(0.05)
        path = received.line.split()[1].rpartition("/")[2]
        connection.sendall(http(200, {"id": 1, "path": path}))

    secure = request.param == "https"
    tls = request.getfixturevalue("tls_context") if secure else None
    settings = {"token": TOKEN, "max_retries": 0}
    with RawServer(respond, tls=tls) as server:
        if request.param == "through a proxy":
            monkeypatch.setenv("http_proxy", server.base_url)
            settings |= {"base_url": "http://api.example.test", "allow_http": True}
        else:
            settings |= {"base_url": server.base_url}
        if secure:
            settings |= {"ca_bundle": str(request.getfixturevalue("certificate"))}
        with FsmClient(Settings.checked(settings)) as made:
            made.server = server
            yield made


def answered(client, method, path):
    try:
        return client.request(method, f"/{path}")["path"]
    except FsmError as error:
        return repr(error)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_response_goes_to_the_process_that_asked(client, method):
    ready, answers = forking.Barrier(CHILDREN + 1), forking.Queue()

    def child(number):
        ready.wait(10)
        answers.put((number, [answered(client, method, f"{number}-{n}") for n in range(3)]))

    assert answered(client, method, "before") == "before"
    children = [forking.Process(target=child, args=(number,)) for number in range(CHILDREN)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
        for one in children:
            one.start()
    ready.wait(10)
    parent = [answered(client, method, f"parent-{n}") for n in range(3)]
    received = dict(answers.get(timeout=20) for _ in children)
    for one in children:
        one.join(10)

    assert parent == [f"parent-{n}" for n in range(3)]
    assert received == {number: [f"{number}-{n}" for n in range(3)] for number in range(CHILDREN)}
    if method == "GET":  # a write does not reuse a connection that was idle for a second
        own = {
            one.connection
            for one in client.server.requests
            if "before" in one.line or "parent" in one.line
        }
        assert own == {1}, "the children have closed the parent's connection"
