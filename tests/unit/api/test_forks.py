"""A client that was used before a fork: each process has connections of its own."""

import multiprocessing
import threading
import warnings

import pytest

from fsm_provider.api import FsmClient, FsmError, Settings
from tests.unit.api.raw_server import RawServer, http
from tests.unit.conftest import TOKEN

CHILDREN = 4
REQUESTS = 3
forking = multiprocessing.get_context("fork")


@pytest.fixture(params=["http", "https", "through a proxy"])
def client(request, monkeypatch):
    """A client of a service that answers slowly with the path of the request."""

    def respond(connection, received, _):
        threading.Event().wait(0.05)
        path = received.line.split()[1].rpartition("/")[2]
        connection.sendall(http(200, {"id": 1, "path": path}))

    settings = {"token": TOKEN, "max_retries": 0}
    tls = None
    if request.param == "https":
        tls = request.getfixturevalue("tls_context")
        settings["ca_bundle"] = str(request.getfixturevalue("certificate"))
    with RawServer(respond, tls=tls) as server:
        settings["base_url"] = server.base_url
        if request.param == "through a proxy":
            monkeypatch.setenv("http_proxy", server.base_url)
            settings["base_url"] = "http://api.example.test"
            settings["allow_http"] = True
        with FsmClient(Settings.parse(settings)) as made:
            made.server = server
            yield made


def request_path(client, method, path):
    """Request a path; return the path in the response, or the error as text."""
    try:
        return client.request(method, f"/{path}")["path"]
    except FsmError as error:
        return repr(error)


def paths_of(name):
    return [f"{name}-{number}" for number in range(REQUESTS)]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_response_goes_to_the_process_that_asked(client, method):
    ready = forking.Barrier(CHILDREN + 1)
    answers = forking.Queue()

    def request_paths_of(name):
        return [request_path(client, method, path) for path in paths_of(name)]

    def run_child(number):
        ready.wait(10)
        answers.put((number, request_paths_of(number)))

    assert request_path(client, method, "before") == "before"
    children = [forking.Process(target=run_child, args=(number,)) for number in range(CHILDREN)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
        for child in children:
            child.start()
    ready.wait(10)
    received_by_parent = request_paths_of("parent")
    received = dict(answers.get(timeout=20) for _ in children)
    for child in children:
        child.join(10)

    assert received_by_parent == paths_of("parent")
    assert received == {number: paths_of(number) for number in range(CHILDREN)}
    if method == "GET":  # a write does not reuse a connection that was idle for a second
        connections_of_parent = set()
        for request in client.server.requests:
            if "before" in request.line or "parent" in request.line:
                connections_of_parent.add(request.connection)
        assert connections_of_parent == {1}, "the children have closed the parent's connection"
