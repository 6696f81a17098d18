"""dlt's ``RESTClient`` with its cursor paginator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlt.sources.helpers.rest_client.auth import BearerTokenAuth
from dlt.sources.helpers.rest_client.client import RESTClient
from dlt.sources.helpers.rest_client.paginators import JSONResponseCursorPaginator

from tests.benchmarks.server import TOKEN


def forms(base_url: str) -> Iterator[dict[str, Any]]:
    """List the forms."""
    client = RESTClient(
        base_url=base_url,
        auth=BearerTokenAuth(TOKEN),
        paginator=JSONResponseCursorPaginator(cursor_path="pagination.nextCursor", cursor_param="cursor"),
        data_selector="data",
    )
    for page in client.paginate("/forms"):
        yield from page
