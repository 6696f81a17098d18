"""A complete listing over a socket, with transient failures of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_provider.api import FsmClient, Settings
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Fault
from fsm_provider.testing.listing import Listing
from fsm_provider.testing.settings import Dialect

RETRIES = 3
# All waits for one page fit the budget of its retries.
waits = st.integers(-5, 30)
retry_afters = st.one_of(
    st.none(),
    waits.map(str),
    waits.map(lambda seconds: datetime.now(UTC) + timedelta(seconds=seconds)),
    st.sampled_from(["soon", "", "nan", "1e9"]),
)
statuses: st.SearchStrategy[Fault] = st.builds(
    faults.Status,
    st.integers(500, 599) | st.just(429),
    body=st.sampled_from([b"", b"later", b"<h1>no</h1>", b'{"data": []}', b"\xff"]),
    retry_after=retry_afters,
)
unreadable: st.SearchStrategy[Fault] = st.builds(faults.Body, st.binary(max_size=9))
not_gzip: st.SearchStrategy[Fault] = st.builds(
    faults.Body, st.binary(max_size=20), headers=st.just({"content-encoding": "gzip"})
)
truncated: st.SearchStrategy[Fault] = st.builds(
    faults.Truncated, at=st.none() | st.integers(-3, 20).filter(bool), chunked=st.booleans()
)
reset: st.SearchStrategy[Fault] = st.builds(faults.Reset, after_handling=st.booleans())
transient_faults = st.one_of(
    statuses, unreadable, not_gzip, truncated, reset, st.builds(faults.MalformedResponse)
)
correct_responses: st.SearchStrategy[Fault] = st.sampled_from(
    [faults.CorrectResponse(), faults.Gzip(), faults.WrongContentType(), faults.WrongContentType(None)]
)


@dataclass(frozen=True)
class Scenario:
    """A listing, and for each page its responses, the right one last."""

    forms: int
    page_size: int
    dialect: Dialect
    cursor_param: str
    cursors_from_zero: bool
    pages: list[list[Fault]]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    forms, page_size = draw(st.integers(0, 12)), draw(st.integers(1, 6))
    page = st.builds(
        lambda bad, good: [*bad, good], st.lists(transient_faults, max_size=RETRIES), correct_responses
    )
    pages = max(1, -(-forms // page_size))
    return Scenario(
        forms=forms,
        page_size=page_size,
        dialect=draw(st.sampled_from(["specified", "typed", "string"])),
        cursor_param=draw(st.sampled_from(["cursor", "page[next]", "a&b=c"]) | cursor_names),
        cursors_from_zero=draw(st.booleans()),
        pages=draw(st.lists(page, min_size=pages, max_size=pages)),
    )


cursor_names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService() as running:
        yield running


def set_up(service: FakeFieldService, scenario: Scenario) -> None:
    service.clear_faults()
    service.clear_requests()
    service._state.forms = Listing()
    service.settings.page_size = scenario.page_size
    service.settings.dialect = scenario.dialect
    service.settings.cursor_param = scenario.cursor_param
    service.settings.cursors_from_zero = scenario.cursors_from_zero
    service.seed_forms(scenario.forms)
    responses = [response for page in scenario.pages for response in page]
    for call, response in enumerate(responses, start=1):
        service.fail("GET", "/forms", response, call=call)


@settings(max_examples=150)
@given(scenario=scenarios())
def test_any_listing_gives_every_form_once_in_order(service: FakeFieldService, scenario: Scenario) -> None:
    set_up(service, scenario)
    checked = Settings.checked(
        {
            "base_url": service.base_url,
            "token": service.settings.token,
            "cursor_param": scenario.cursor_param,
            "max_retries": RETRIES,
        }
    )

    with FsmClient(checked, sleep=lambda _: None) as client:
        ids = [form.id for form in client.list_forms()]

    assert ids == [form["id"] for form in service.forms]
    assert len(service.requests) == sum(map(len, scenario.pages))
