"""The clients that are compared: each lists forms, creates jobs, or both, as a user would with it.

A listing takes a base URL and gives the forms; a creation takes a base URL and (property, payload)
pairs and gives the identifiers of the jobs. What they need is imported where they run, before what
is measured.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import SecretStr

from tests.benchmarks.server import AUTHORISATION, TOKEN

Payloads = Iterable[tuple[int, dict[str, Any]]]

OURS = "FsmClient"
REFERENCE = "requests.Session, untyped"
DLT = "dlt RESTClient, untyped"


def connect(conn_type: str, base_url: str, **extra: str) -> None:
    """Point the Airflow connection ``bench`` at a service."""
    connection = {"conn_type": conn_type, "host": base_url, "password": TOKEN, "extra": extra}
    os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(connection)


def hide_simplejson() -> None:
    """Hide what dlt brings along: requests would parse with it instead of ``json``."""
    sys.modules["simplejson"] = None  # type: ignore[assignment]


def list_by_ours(base_url: str) -> Iterator[Any]:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.settings import Settings

    with FsmClient(Settings(base_url=base_url, token=SecretStr(TOKEN))) as client:
        yield from client.list_forms()


def create_by_ours(base_url: str, payloads: Payloads) -> Iterator[int]:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.settings import Settings

    with FsmClient(Settings(base_url=base_url, token=SecretStr(TOKEN))) as client:
        for property_id, payload in payloads:
            yield client.create_job(property_id, payload).id


def list_by_session(base_url: str) -> Iterator[dict[str, Any]]:
    import requests

    params: dict[str, str] = {}
    with requests.Session() as session:
        session.headers.update(AUTHORISATION)
        while True:
            response = session.get(f"{base_url}/forms", params=params, timeout=30)
            response.raise_for_status()
            page = response.json()
            yield from page["data"]
            if page["pagination"]["hasMore"] != "true":
                return
            params = {"cursor": page["pagination"]["nextCursor"]}


def create_by_session(base_url: str, payloads: Payloads) -> Iterator[int]:
    import requests

    with requests.Session() as session:
        session.headers.update(AUTHORISATION | {"X-API-VERSION": "2.0"})
        for property_id, payload in payloads:
            url = f"{base_url}/properties/{property_id}/jobs"
            response = session.post(url, json=payload, timeout=30)
            response.raise_for_status()
            yield response.json()["id"]


def list_by_hook(base_url: str) -> Iterator[dict[str, Any]]:
    """List with one ``HttpHook``, whose adapter keeps the connection alive."""
    from airflow.providers.http.hooks.http import HttpHook

    connect("http", base_url)
    hook = HttpHook(method="GET", http_conn_id="bench")
    params: dict[str, str] = {}
    while True:
        page = hook.run("forms", data=params, headers=AUTHORISATION).json()
        yield from page["data"]
        if page["pagination"]["hasMore"] != "true":
            return
        params = {"cursor": page["pagination"]["nextCursor"]}


def create_by_hook(base_url: str, payloads: Payloads) -> Iterator[int]:
    from airflow.providers.http.hooks.http import HttpHook

    connect("http", base_url)
    hook = HttpHook(method="POST", http_conn_id="bench")
    headers = AUTHORISATION | {"X-API-VERSION": "2.0", "Content-Type": "application/json"}
    for property_id, payload in payloads:
        endpoint = f"properties/{property_id}/jobs"
        response = hook.run(endpoint, data=json.dumps(payload), headers=headers)
        yield response.json()["id"]


def list_by_operator(base_url: str) -> list[dict[str, Any]]:
    """List with ``HttpOperator``, which cannot stream: it keeps all responses for one value.

    ``execute_sync`` is what its ``execute`` runs; the latter refuses to run outside of a task.
    """
    from airflow.providers.http.operators.http import HttpOperator

    def next_page(response: Any) -> dict[str, Any] | None:
        pagination = response.json()["pagination"]
        if pagination["hasMore"] != "true":
            return None
        return {"data": {"cursor": pagination["nextCursor"]}}

    connect("http", base_url)
    operator = HttpOperator(
        task_id="list",
        http_conn_id="bench",
        method="GET",
        endpoint="forms",
        headers=AUTHORISATION,
        pagination_function=next_page,
        response_filter=lambda pages: [form for page in pages for form in page.json()["data"]],
    )
    return operator.execute_sync({})


def create_by_operator(base_url: str, payloads: Payloads) -> Iterator[int]:
    """Create the jobs with one operator, which is kinder than the one per job of a DAG."""
    from airflow.providers.http.operators.http import HttpOperator

    connect("http", base_url)
    operator = HttpOperator(
        task_id="create",
        http_conn_id="bench",
        method="POST",
        headers=AUTHORISATION | {"X-API-VERSION": "2.0", "Content-Type": "application/json"},
        response_filter=lambda response: response.json()["id"],
    )
    for property_id, payload in payloads:
        operator.endpoint = f"properties/{property_id}/jobs"
        operator.data = json.dumps(payload)
        yield operator.execute_sync({})


def list_by_dlt(base_url: str) -> Iterator[dict[str, Any]]:
    from dlt.sources.helpers.rest_client.auth import BearerTokenAuth
    from dlt.sources.helpers.rest_client.client import RESTClient
    from dlt.sources.helpers.rest_client.paginators import JSONResponseCursorPaginator

    paginator = JSONResponseCursorPaginator(
        cursor_path="pagination.nextCursor",
        cursor_param="cursor",
    )
    client = RESTClient(
        base_url=base_url,
        auth=BearerTokenAuth(TOKEN),
        paginator=paginator,
        data_selector="data",
    )
    for page in client.paginate("/forms"):
        yield from page


LISTINGS: dict[str, Callable[[str], Iterable[Any]]] = {
    OURS: list_by_ours,
    REFERENCE: list_by_session,
    "HttpHook, untyped": list_by_hook,
    "HttpOperator, untyped": list_by_operator,
    DLT: list_by_dlt,
}
CREATIONS: dict[str, Callable[[str, Payloads], Iterable[int]]] = {
    OURS: create_by_ours,
    "requests.Session": create_by_session,
    "HttpHook, one instance": create_by_hook,
    "HttpOperator": create_by_operator,
}
