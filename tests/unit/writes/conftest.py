"""A service that recognises a write by its key."""

from collections.abc import Iterator

import pytest

from fsm_provider.api import retry
from fsm_provider.testing import FakeFieldService
from tests.unit.writes.operators import HEADER


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the attempts at a request, which are long otherwise."""
    monkeypatch.setattr(retry, "BASE", 0.01)


@pytest.fixture
def service_with_keys() -> Iterator[FakeFieldService]:
    with FakeFieldService(idempotency_header=HEADER) as running:
        yield running
