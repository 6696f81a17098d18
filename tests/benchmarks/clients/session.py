"""A kept-alive ``requests.Session`` with ``.json()``: what the others are measured by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import requests

from tests.benchmarks.clients.loops import AUTHORISATION, dictionaries


def forms(base_url: str) -> Iterator[dict[str, Any]]:
    """List the forms."""
    with requests.Session() as session:
        session.headers.update(AUTHORISATION)

        def fetch(params: dict[str, str]) -> requests.Response:
            response = session.get(f"{base_url}/forms", params=params, timeout=30)
            response.raise_for_status()
            return response

        yield from dictionaries(fetch)


def create_jobs(base_url: str, payloads: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Create the jobs."""
    with requests.Session() as session:
        session.headers.update(AUTHORISATION | {"X-API-VERSION": "2.0"})
        for property_id, payload in payloads:
            response = session.post(f"{base_url}/properties/{property_id}/jobs", json=payload, timeout=30)
            response.raise_for_status()
            yield response.json()["id"]
