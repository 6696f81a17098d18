from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from fsm_provider.testing import FakeFieldService


class Caller:
    """A plain HTTP client of one fake service, on one kept-alive connection."""

    def __init__(self, service: FakeFieldService) -> None:
        self.service = service
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {service.settings.token}"

    def __call__(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return self.session.request(method, self.service.base_url + path, timeout=5, **kwargs)

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Follow nextCursor to the end, on any dialect."""
        while True:
            page = self("GET", path, params=params).json()
            yield page
            if page["pagination"]["hasMore"] in (False, "false"):
                return
            params[self.service.settings.cursor_param] = page["pagination"]["nextCursor"]


@pytest.fixture
def serve() -> Iterator[Callable[..., Caller]]:
    """Start services with the given parameters; they and their clients end with the test."""
    callers: list[Caller] = []

    def start(**parameters: Any) -> Caller:
        callers.append(Caller(FakeFieldService(**parameters).start()))
        return callers[-1]

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
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record for record in complaints if record.name.startswith(("uvicorn", "asyncio"))] == []


def register(call: Caller, event_types: list[tuple[str, str]], **params: str) -> requests.Response:
    """Register a webhook for the event types, in the query as they are given."""
    query = [
        ("description", params.get("description", "New jobs")),
        ("object", params.get("object", "jobs")),
        ("targetURL", params.get("targetURL", "https://example.test/hook")),
        *event_types,
    ]
    return call("POST", "/settings/webhooks", params=query)
