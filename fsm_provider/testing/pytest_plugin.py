"""Pytest fixtures: name this module in the ``pytest_plugins`` of a root ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsm_provider.testing.service import FakeFieldService


@pytest.fixture
def fake_field_service() -> Iterator[FakeFieldService]:
    """Serve the field-service API, empty, for one test."""
    with FakeFieldService() as service:
        yield service
