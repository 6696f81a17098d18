"""A plain HTTP client of a fake service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import requests

from fsm_provider.testing import FakeFieldService


class Caller:
    """A client of one fake service, on one kept-alive connection."""

    def __init__(self, service: FakeFieldService) -> None:
        self.service = service
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {service.settings.token}"

    def __call__(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        url = self.service.base_url + path
        return self.session.request(method, url, timeout=5, **kwargs)

    def create_job(self, property_id: int | str, body: Any = None) -> requests.Response:
        """Create a job, by default with an empty body."""
        if body is None:
            body = {}
        return self("POST", f"/properties/{property_id}/jobs", json=body)

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Follow nextCursor to the end, on any dialect."""
        while True:
            page = self("GET", path, params=params).json()
            yield page
            if page["pagination"]["hasMore"] in (False, "false"):
                return
            params[self.service.settings.cursor_param] = page["pagination"]["nextCursor"]


def register(call: Caller, event_types: list[tuple[str, str]], **params: str) -> requests.Response:
    """Register a webhook for the event types, in the query as they are given."""
    query = [
        ("description", params.get("description", "New jobs")),
        ("object", params.get("object", "jobs")),
        ("targetURL", params.get("targetURL", "https://example.test/hook")),
        *event_types,
    ]
    return call("POST", "/settings/webhooks", params=query)
