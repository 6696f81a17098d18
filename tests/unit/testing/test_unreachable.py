"""Faults of all connections at once, as clients see them on the wire."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
import requests

from fsm_provider.testing import FakeFieldService, faults
from tests.unit.testing.raw_connection import JOBS, SHORT, RawConnection, create_job


def test_connections_are_refused_for_a_while_and_the_service_comes_back_as_it_was(call, service):
    call.create_job(1)
    url = service.base_url

    for _ in range(2):
        with service.refuse_connections():
            for _ in range(3):
                with pytest.raises(ConnectionRefusedError):
                    RawConnection(service)
            with pytest.raises(requests.ConnectionError, match="refused"):
                call("GET", "/forms")
        assert call.create_job(1).status_code == 201

    assert service.base_url == url
    assert len(service.jobs) == 3
    assert len(service.requests) == 3


def test_a_refusing_service_closes_idle_connections_and_completes_what_is_under_way(service):
    held = threading.Event()
    scripted = service.fail(*JOBS, faults.Before(held.wait))
    with RawConnection(service) as idle, RawConnection(service) as busy:
        idle.send("GET", "/forms")
        assert idle.receive().status == 200
        busy.send_job()
        service.wait_for(lambda: scripted.hits, timeout=5)

        with service.refuse_connections():
            closed = idle.receive()
            held.set()
            response = busy.receive()

    assert closed.data == b""
    assert closed.end == "closed"
    assert response.status == 201
    assert response.end == "complete"


def test_a_stop_closes_connections_that_are_made_at_that_moment():
    for _ in range(2):
        service = FakeFieldService().start()
        _, _, port = service.base_url.rpartition(":")
        address = ("127.0.0.1", int(port))
        connections: list[socket.socket] = []
        stopping = threading.Timer(0.01, service.stop)
        stopping.start()
        with suppress(OSError):
            while len(connections) < 1000:
                connections.append(socket.create_connection(address, 0.2))
        stopping.join()

        for connection in connections:
            with connection, suppress(ConnectionError):
                connection.settimeout(5)
                assert connection.recv(1) == b""


def test_connections_are_reset_before_a_request_is_read(service):
    with service.reset_connections() as was_reset:
        for _ in range(2):
            with RawConnection(service) as connection:
                assert connection.receive(timeout=0.05).end == "silence"
                connection.socket.sendall(b"P")
                assert connection.receive().end == "reset"

    assert len(set(was_reset)) == 2
    assert service.requests == []
    assert create_job(service).status == 201


def test_connections_may_be_reset_as_soon_as_they_are_accepted(service):
    with service.reset_connections(at_accept=True) as was_reset:
        for _ in range(20):
            with suppress(ConnectionResetError), RawConnection(service) as connection:
                assert connection.receive().end == "reset"

    assert len(set(was_reset)) == 20
    assert service.requests == []


def test_so_many_connections_are_reset(call, service):
    with service.reset_connections(1) as was_reset:
        with pytest.raises(requests.ConnectionError):
            call("GET", "/forms")
        assert call("GET", "/forms").status_code == 200

    assert len(was_reset) == 1
    assert len(service.requests) == 1


@pytest.mark.parametrize("fault", ["refuse_connections", "reset_connections"])
def test_connection_faults_need_a_running_service(service, fault):
    service.stop()
    break_connections = getattr(service, fault)

    with pytest.raises(RuntimeError, match="start"), break_connections():
        pass


def test_a_client_that_leaves_in_the_middle_is_no_trouble(service):
    service.fail(*JOBS, faults.Delay(SHORT))
    service.fail(*JOBS, faults.Trickle(SHORT), call=2)
    for _ in range(2):
        with RawConnection(service) as connection:
            connection.send_job()
    begun = b"POST /properties/1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"
    with RawConnection(service) as connection:
        connection.socket.sendall(begun)

    service.wait_for(lambda: len(service.jobs) == 2, timeout=5)
    time.sleep(2 * SHORT)

    assert len(service.requests) == 2
