"""Which calls a fault is played at."""

from __future__ import annotations

import threading

import pytest

from fsm_provider.testing import faults
from fsm_provider.testing.app import create_app
from fsm_provider.testing.script import ROUTES
from tests.unit.testing.raw_connection import JOBS, create_job


def failed_calls(call, count):
    """List the forms so often; return which calls failed, counted from 1."""
    failed = []
    for number in range(1, count + 1):
        response = call("GET", "/forms")
        if response.status_code == 503:
            failed.append(number)
    return failed


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ({}, [1]),
        ({"call": 1}, [1]),
        ({"call": 3}, [3]),
        ({"calls": (1, 4)}, [1, 4]),
        ({"calls": range(2, 4)}, [2, 3]),
        ({"calls": ()}, []),
        ({"every": True}, [1, 2, 3, 4, 5]),
    ],
)
def test_only_the_calls_named_fail(call, service, calls, expected):
    scripted = service.fail("GET", "/forms", faults.Status(503), **calls)

    assert failed_calls(call, 5) == expected
    assert scripted.hits == len(expected)


def test_only_matching_requests_are_counted_and_fail(call, service):
    service.fail(*JOBS, faults.Status(503), call=2)

    assert call.create_job(1).status_code == 201
    assert failed_calls(call, 3) == []
    assert call("POST", "/settings/webhooks").status_code == 409
    assert call.create_job(22).status_code == 503
    [job] = service.jobs
    assert job["propertyID"] == 1


def test_the_fault_scripted_last_goes_first_and_every_fault_counts(call, service):
    service.fail("GET", "/forms", faults.Status(502), every=True)
    service.fail("GET", "/forms", faults.Status(503), calls=(2, 3))
    service.fail("GET", "/forms", faults.CorrectResponse(), call=3)

    for expected in (502, 503, 200, 502):
        assert call("GET", "/forms").status_code == expected


def test_concurrent_calls_are_counted_one_by_one(service):
    service.fail(*JOBS, faults.Reset(after_handling=True), calls=range(1, 11))
    ends = []

    def create_one_job():
        ends.append(create_job(service).end)

    clients = [threading.Thread(target=create_one_job) for _ in range(20)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()

    assert sorted(ends) == ["complete"] * 10 + ["reset"] * 10
    assert len(service.jobs) == 20


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ({"call": 0}, "from 1"),
        ({"call": 1, "every": True}, "one of"),
        ({"call": 1, "calls": (2,)}, "one of"),
    ],
)
def test_calls_that_make_no_sense_are_refused(service, calls, named):
    with pytest.raises(ValueError, match=named):
        service.fail("GET", "/forms", faults.Status(503), **calls)


def test_the_routes_are_those_of_the_application(service):
    app = create_app(service.settings, service._state, base_path="")

    routes = set()
    for route in app.routes:
        for method in getattr(route, "methods", ()):
            if method != "HEAD" and not route.path.startswith(("/docs", "/redoc")):
                routes.add((method, route.path))
    assert routes == set(ROUTES)


@pytest.mark.parametrize(
    ("method", "path_pattern"),
    [
        ("POST", "/property/*/jobs"),
        ("GET", "/properties/*/jobs"),
        ("post", "/forms"),
        ("GET", "forms"),
        ("GET", "/forms/"),
    ],
)
def test_a_fault_that_no_request_can_meet_is_refused(service, method, path_pattern):
    with pytest.raises(ValueError, match="the fake answers no such request, only GET /asset"):
        service.fail(method, path_pattern, faults.Status(503))


@pytest.mark.parametrize(
    ("method", "path_pattern"),
    [
        ("*", "*"),
        ("post", "/properties/7/jobs"),
        ("POST", "/properties/1*/jobs"),
        ("POST", "*/jobs"),
        ("GET", "/forms*"),
        ("GET", "/forms/500[12]/pdf"),
        ("GET", "/forms/500?/pdf"),
        ("GET", "/*/5001/pdf"),
    ],
)
def test_a_fault_that_a_request_may_meet_is_scripted(service, method, path_pattern):
    scripted = service.fail(method, path_pattern, faults.Status(503))

    assert service.unused_faults == [scripted]


def test_a_path_that_the_fake_does_not_have_may_fail_once_it_is_answered(call, service):
    service.fail("GET", "/users", faults.Status(200, body={"data": []}), every=True)
    service.fail("GET", "/users", faults.Status(503))

    assert [call("GET", "/users").status_code for _ in range(2)] == [503, 200]
