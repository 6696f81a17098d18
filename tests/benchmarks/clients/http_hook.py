"""Airflow's ``HttpHook``: one instance, whose adapter keeps the connection alive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from airflow.providers.http.hooks.http import HttpHook
from requests import Response

from tests.benchmarks.clients.loops import AUTHORISATION, Fetch, Form, dictionaries, models
from tests.benchmarks.connections import provide


def _fetch(base_url: str) -> Fetch:
    provide({"conn_type": "http", "host": base_url})
    hook = HttpHook(method="GET", http_conn_id="bench")

    def fetch(params: dict[str, str]) -> Response:
        response: Response = hook.run("forms", data=params, headers=AUTHORISATION)
        return response

    return fetch


def forms(base_url: str) -> Iterator[dict[str, Any]]:
    """List the forms."""
    return dictionaries(_fetch(base_url))


def typed_forms(base_url: str) -> Iterator[Form]:
    """List the forms as models."""
    return models(_fetch(base_url))


def create_jobs(base_url: str, payloads: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Create the jobs."""
    provide({"conn_type": "http", "host": base_url})
    hook = HttpHook(method="POST", http_conn_id="bench")
    headers = AUTHORISATION | {"X-API-VERSION": "2.0", "Content-Type": "application/json"}
    for property_id, payload in payloads:
        response = hook.run(f"properties/{property_id}/jobs", data=json.dumps(payload), headers=headers)
        yield response.json()["id"]
