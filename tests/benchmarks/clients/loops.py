"""The loop over a listing's pages that everyone writes by hand, and the models to go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from requests import Response

from tests.benchmarks.server import TOKEN

AUTHORISATION = {"Authorization": f"Bearer {TOKEN}"}
Fetch = Callable[[dict[str, str]], Response]


class JobDetails(BaseModel):
    """A form's ``jobDetails``."""

    jobID: int
    jobDescription: str
    jobAddressLine1: str
    jobAddressLine2: str
    jobAddressLine3: str
    jobTown: str
    jobProvince: str
    jobPostcode: str


class FormLinks(BaseModel):
    """A form's ``links``."""

    property: str
    job: str


class Form(BaseModel):
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


class Meta(BaseModel):
    """A listing's ``meta``."""

    serverTime: datetime
    totalRecords: str


class Pagination(BaseModel):
    """A listing's ``pagination``."""

    hasMore: str
    nextCursor: str
    prevCursor: str


class Page(BaseModel):
    """The envelope."""

    meta: Meta
    pagination: Pagination
    data: list[Form]


def dictionaries(fetch: Fetch) -> Iterator[dict[str, Any]]:
    """List with ``.json()``."""
    params: dict[str, str] = {}
    while True:
        page = fetch(params).json()
        yield from page["data"]
        if page["pagination"]["hasMore"] != "true":
            return
        params = {"cursor": page["pagination"]["nextCursor"]}


def models(fetch: Fetch) -> Iterator[Form]:
    """List with pydantic, one call a page."""
    params: dict[str, str] = {}
    while True:
        page = Page.model_validate_json(fetch(params).content)
        yield from page.data
        if page.pagination.hasMore != "true":
            return
        params = {"cursor": page.pagination.nextCursor}
