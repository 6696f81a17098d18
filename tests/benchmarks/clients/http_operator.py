"""Airflow's ``HttpOperator`` with its ``pagination_function``.

It keeps every response and returns one value, for XCom: it cannot stream. ``execute_sync`` is what
its ``execute`` runs; the latter refuses to run outside of a task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from airflow.providers.http.operators.http import HttpOperator
from requests import Response

from tests.benchmarks.clients.loops import AUTHORISATION, Form, Page
from tests.benchmarks.connections import provide


def _list(base_url: str, uri_for_records: Callable[[list[Response]], list[Any]]) -> list[Any]:
    provide({"conn_type": "http", "host": base_url})
    operator = HttpOperator(
        task_id="list",
        http_conn_id="bench",
        method="GET",
        endpoint="forms",
        headers=AUTHORISATION,
        pagination_function=_next_page,
        response_filter=uri_for_records,
    )
    return operator.execute_sync({})


def _next_page(response: Response) -> dict[str, Any] | None:
    pagination = response.json()["pagination"]
    if pagination["hasMore"] != "true":
        return None
    return {"data": {"cursor": pagination["nextCursor"]}}


def forms(base_url: str) -> list[dict[str, Any]]:
    """List the forms."""
    return _list(base_url, lambda pages: [form for page in pages for form in page.json()["data"]])


def typed_forms(base_url: str) -> list[Form]:
    """List the forms as models."""

    def parse_forms(pages: list[Response]) -> list[Form]:
        return [form for page in pages for form in Page.model_validate_json(page.content).data]

    return _list(base_url, parse_forms)


def create_jobs(base_url: str, payloads: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Create the jobs with one operator, which is kinder than the one per job of a DAG."""
    provide({"conn_type": "http", "host": base_url})
    operator = HttpOperator(
        task_id="create",
        http_conn_id="bench",
        method="POST",
        headers=AUTHORISATION | {"X-API-VERSION": "2.0", "Content-Type": "application/json"},
        response_filter=lambda response: response.json()["id"],
    )
    for property_id, payload in payloads:
        operator.endpoint, operator.data = f"properties/{property_id}/jobs", json.dumps(payload)
        yield operator.execute_sync({})
