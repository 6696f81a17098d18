"""This package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import SecretStr

from fsm_provider.api.client import FsmClient
from fsm_provider.api.models import Form
from fsm_provider.api.settings import Settings
from tests.benchmarks.server import TOKEN


def _client(base_url: str) -> FsmClient:
    return FsmClient(Settings(base_url=base_url, token=SecretStr(TOKEN)))


def forms(base_url: str) -> Iterator[Form]:
    """List the forms."""
    with _client(base_url) as client:
        yield from client.list_forms()


def forms_by_hook(base_url: str) -> Iterator[Form]:
    """List the forms with the hook, from an Airflow connection."""
    from fsm_provider.hooks.fsm import FsmHook
    from tests.benchmarks.connections import provide

    provide({"conn_type": "fsm", "host": base_url, "password": TOKEN})
    yield from FsmHook("bench").list_forms()


def create_jobs(base_url: str, payloads: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Create the jobs."""
    with _client(base_url) as client:
        for property_id, payload in payloads:
            yield client.create_job(property_id, payload).id
