from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fsm_provider.testing import FakeFieldService
from tests.unit.testing.caller import Caller


@pytest.fixture
def serve() -> Iterator[Callable[..., Caller]]:
    """Start services with the given parameters; they and their clients end with the test."""
    callers: list[Caller] = []

    def start(**parameters: Any) -> Caller:
        service = FakeFieldService(**parameters).start()
        caller = Caller(service)
        callers.append(caller)
        return caller

    yield start

    for caller in callers:
        caller.session.close()
        caller.service.stop()


@pytest.fixture
def call(serve: Callable[..., Caller]) -> Caller:
    """A client of a service with the defaults."""
    return serve()


@pytest.fixture
def service(call: Caller, caplog: pytest.LogCaptureFixture) -> Iterator[FakeFieldService]:
    """A service that must not complain in its log."""
    yield call.service

    call.service.stop()
    complaints = []
    for record in caplog.records:
        is_of_server = record.name.startswith(("uvicorn", "asyncio"))
        if is_of_server and record.levelno >= logging.WARNING:
            complaints.append(record)
    assert complaints == []
