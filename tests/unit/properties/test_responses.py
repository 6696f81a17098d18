"""Any response gives a result or one of our errors."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_provider.api import (
    FsmClient,
    FsmError,
    FsmInputError,
    FsmResponseError,
    FsmUncertainWriteError,
    Settings,
)
from fsm_provider.api.errors import is_refusal
from fsm_provider.api.models import AssetDynamicField, Form, Job
from fsm_provider.api.parsing import parse_json, parse_page, parse_record
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.properties.strategies import any_records, json_values, names, times

RETRIES = 2
OFTEN = [
    200,
    201,
    202,
    204,
    301,
    302,
    304,
    307,
    400,
    401,
    403,
    404,
    408,
    409,
    422,
    429,
    499,
    500,
    503,
]


def listings_for(model: type[Any]) -> st.SearchStrategy[Any]:
    """Make what is nearly a listing."""
    field_names = st.sampled_from(["hasMore", "nextCursor", "serverTime"]) | names
    fields = st.dictionaries(field_names, json_values, max_size=4)
    records = st.lists(any_records(model) | json_values, max_size=3)
    return st.fixed_dictionaries(
        {"data": records | json_values},
        optional={
            "pagination": fields | json_values,
            "meta": fields | json_values,
            "more": json_values,
        },
    )


ODD_JSON = [
    "NaN",
    "[1e400]",
    '"\\ud800"',
    "[" * 5_000,
    "1" * 5_000,
    '{"id": 1e400, "id": 1}',
]
usual_json = st.one_of(listings_for(Form), any_records(Job), json_values).map(json.dumps)
texts_of_json = (usual_json | st.sampled_from(ODD_JSON)).map(str.encode)
bodies = (
    st.binary(max_size=40)
    | texts_of_json
    | texts_of_json.map(gzip.compress)
    | texts_of_json.map(zlib.compress)
)

printable_ascii = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
header_texts = st.text(printable_ascii, max_size=20).map(str.strip)

zones_of_dates = st.sampled_from(["", " GMT", " -0000", " +9999"]) | st.integers(-2000, 2000).map(
    " {:+}".format
)
retry_afters = st.one_of(
    header_texts,
    st.integers().map(str),
    st.floats().map(str),
    times.map(lambda time: format_datetime(time.astimezone(UTC), usegmt=True)),
    st.builds("Wed, 01 Jan {} 00:00:00{}".format, st.integers(0), zones_of_dates),
)
schemes = st.sampled_from(["", "http:", "https:", "ftp:"])
locations = st.one_of(
    header_texts,
    st.text(st.characters(min_codepoint=0xA1, max_codepoint=0xFF), max_size=4),
    st.builds("{}//{}".format, schemes, header_texts),
    st.just("http://["),
)


@dataclass(frozen=True)
class AnyResponse:
    """A response of the service."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    async def play(self, exchange: Any) -> None:
        body = b"" if self.status in (204, 304) else self.body
        await faults.Status(self.status, body, headers=self.headers).play(exchange)


content_types = st.sampled_from(["application/json", "text/html; charset=utf-7"])
content_encodings = st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, gzip", "odd"])
headers = st.fixed_dictionaries(
    {},
    optional={
        "Content-Type": content_types | header_texts,
        "Content-Encoding": content_encodings,
        "Retry-After": retry_afters,
        "Location": locations,
        "X-Request-ID": header_texts,
    },
)
statuses = st.sampled_from(OFTEN) | st.integers(200, 599)
responses = st.builds(AnyResponse, statuses, bodies, headers)


@pytest.fixture(scope="module")
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService() as running:
        yield running


@pytest.fixture(scope="module")
def client(service: FakeFieldService) -> Iterator[FsmClient]:
    checked = Settings.parse(
        {
            "base_url": service.base_url,
            "token": service.settings.token,
            "max_retries": RETRIES,
        }
    )
    with FsmClient(checked, sleep=lambda _: None) as made:
        yield made


def respond_always(service: FakeFieldService, response: AnyResponse) -> None:
    service.clear_faults()
    service.clear_requests()
    service.fail("*", "*", response, every=True)


@settings(max_examples=80)
@given(response=responses)
def test_any_response_to_a_listing_gives_forms_or_one_of_our_errors(
    service: FakeFieldService, client: FsmClient, response: AnyResponse
) -> None:
    respond_always(service, response)

    with suppress(FsmError):
        for form in client.list_forms(job_id=7, created_since="2026-01-01"):
            assert isinstance(form, Form)

    # A second page is at most asked for once more, as its cursor is then known.
    assert 1 <= len(service.requests) <= 2 * (1 + RETRIES)


@settings(max_examples=80)
@given(response=responses)
def test_any_response_to_a_job_gives_it_or_one_of_our_errors_after_one_request(
    service: FakeFieldService, client: FsmClient, response: AnyResponse
) -> None:
    respond_always(service, response)

    try:
        job = client.create_job(7, {"customerReference": "PO-1"})
    except FsmUncertainWriteError:
        assert not is_refusal(response.status)
    except FsmError:
        assert is_refusal(response.status)
    else:
        assert isinstance(job, Job)
        assert response.status < 300

    is_sent_again = response.status == 429
    assert len(service.requests) == 1 or is_sent_again


@settings(max_examples=100)
@given(body=bodies)
def test_any_body_is_read_or_said_to_be_unreadable(body: bytes) -> None:
    for model in (Form, AssetDynamicField, None):
        with suppress(FsmResponseError, FsmInputError):
            page = parse_page(body, model, number=1, timezone=UTC)
            json.dumps(page.as_json(), ensure_ascii=False, allow_nan=False).encode()
            if model is not None:
                assert all(isinstance(record, model) for record in page.data)
    with suppress(FsmResponseError):
        job = parse_record(parse_json(body), Job, timezone=UTC)
        assert isinstance(job.as_json(), dict)


def test_a_key_named_like_a_type_is_a_key() -> None:
    body = b'{"pagination": {"hasMore": {"bool": 1}}, "data": []}'

    page = parse_page(body, Form, number=1, timezone=UTC)

    assert page.as_json()["pagination"]["hasMore"] == {"bool": 1}
