"""How little it can cost from Python: ``http.client`` and msgspec, no retry, no check, no TLS setup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.benchmarks.server import TOKEN

_HEADERS = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}


class JobDetails(msgspec.Struct):
    """A form's ``jobDetails``."""

    jobID: int
    jobDescription: str
    jobAddressLine1: str
    jobAddressLine2: str
    jobAddressLine3: str
    jobTown: str
    jobProvince: str
    jobPostcode: str


class FormLinks(msgspec.Struct):
    """A form's ``links``."""

    property: str
    job: str


class Form(msgspec.Struct):
    """A form."""

    id: int
    createdOnDateTime: datetime
    lastUpdatedOnDateTime: datetime
    createdByType: str
    createdByID: str
    createdByUser: str
    propertyID: str
    jobDetails: JobDetails
    formName: str
    formPDFURL: str
    links: FormLinks


class Pagination(msgspec.Struct):
    """A listing's ``pagination``."""

    hasMore: str
    nextCursor: str


class Page(msgspec.Struct):
    """The envelope."""

    pagination: Pagination
    data: list[Form]


def forms(base_url: str) -> Iterator[Form]:
    """List the forms."""
    parts = urlsplit(base_url)
    connection = HTTPConnection(parts.netloc)
    decoder = msgspec.json.Decoder(Page)
    query = ""
    while True:
        connection.request("GET", f"{parts.path}/forms{query}", headers=_HEADERS)
        page = decoder.decode(connection.getresponse().read())
        yield from page.data
        if page.pagination.hasMore != "true":
            break
        query = f"?cursor={page.pagination.nextCursor}"
    connection.close()


def create_jobs(base_url: str, payloads: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Create the jobs."""
    parts = urlsplit(base_url)
    connection = HTTPConnection(parts.netloc)
    headers = _HEADERS | {"X-API-VERSION": "2.0", "Content-Type": "application/json"}
    for property_id, payload in payloads:
        connection.request(
            "POST", f"{parts.path}/properties/{property_id}/jobs", json.dumps(payload).encode(), headers
        )
        yield json.loads(connection.getresponse().read())["id"]
    connection.close()
