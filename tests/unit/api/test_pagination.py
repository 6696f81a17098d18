from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.listing import CursorPaginator
from fsm_provider.api.models import AssetDynamicField, Form, Page, Record
from fsm_provider.api.parsing import parse_page

FRESH = object()


def page_with(pagination: Any, *identifiers: int, model: Any = Form) -> Page[Any]:
    """Read a page as it comes over the wire; without ``pagination`` where that is FRESH."""
    name = "dynamicFieldID" if model is AssetDynamicField else "id"
    body: dict[str, Any] = {"data": [{name: identifier} for identifier in identifiers]}
    if pagination is not FRESH:
        body["pagination"] = pagination
    return parse_page(json.dumps(body).encode(), model, number=1, timezone=UTC)


def more(cursor: Any, *identifiers: int, model: Any = Form) -> Page[Any]:
    return page_with({"hasMore": True, "nextCursor": cursor}, *identifiers, model=model)


def refusal(paginator: CursorPaginator, page: Page[Any]) -> str:
    with pytest.raises(FsmPaginationError) as raised:
        paginator.advance(page)
    return str(raised.value)


@pytest.fixture
def paginator() -> CursorPaginator:
    return CursorPaginator("page[after]", max_pages=4)


@pytest.mark.parametrize("has_more", [True, "true", "TRUE", 1, "1"])
def test_every_form_of_has_more_goes_on(paginator, has_more):
    paginator.advance(page_with({"hasMore": has_more, "nextCursor": "n"}, 1))

    assert (paginator.params, paginator.page_number, paginator.finished) == (
        {"page[after]": "n"},
        2,
        False,
    )


@pytest.mark.parametrize("has_more", [False, "false", "False", "FALSE", 0, "0"])
@pytest.mark.parametrize("cursor", ["n", None])
def test_every_form_of_no_more_ends_the_listing(paginator, has_more, cursor):
    paginator.advance(page_with({"hasMore": has_more, "nextCursor": cursor}, 1))

    assert paginator.finished


@pytest.mark.parametrize("cursor", [0, "007", "a&b=c d", "none", 10**30])
def test_a_cursor_is_sent_as_it_came(paginator, cursor):
    paginator.advance(more(cursor, 1))

    assert paginator.params == {"page[after]": str(cursor)}


NO_MORE = [None, "", "yes", "Truee", 2, -1, 1.5, "2", [], {}]
ERRORS = {
    "hasMore": [
        *[[page_with({"hasMore": value, "nextCursor": "n"}, 1)] for value in NO_MORE],
        *[[page_with(one, 1)] for one in ({"nextCursor": "n"}, {}, None, "true", [], FRESH)],
    ],
    "no nextCursor": [
        *[[more(cursor, 1)] for cursor in (None, "", "null")],
        [page_with({"hasMore": True}, 1)],
    ],
    "neither text nor integer": [[more(cursor, 1)] for cursor in (True, [], [1], {"next": 1})],
    "had before": [
        [more(cursor, identifier) for identifier, cursor in enumerate(cursors)]
        for cursors in (["a", "a"], ["a", "b", "c", "b"], [0, 0], [5, "5"])
    ],
    "same records": [
        *[
            [more("a", 1, 2, model=one), more("b", 1, 2, model=one)]
            for one in (Form, AssetDynamicField, None)
        ],
        [more("a", 1, 2), page_with({"hasMore": False}, 1, 2)],
        [more("a", 1), more("b", 2), more("c", 2)],
    ],
    "max_pages=4": [[more(number, number) for number in range(4)]],
}


@pytest.mark.parametrize(
    ("what", "pages"), [(what, pages) for what, cases in ERRORS.items() for pages in cases]
)
def test_a_page_that_does_not_lead_on_is_an_error(paginator, what, pages):
    *fine, last = pages
    for page in fine:
        paginator.advance(page)

    text = refusal(paginator, last)

    assert text.startswith(f"page {len(pages)} of the listing")
    assert what in text
    is_repeated = what in ("had before", "same records")
    assert (
        "Cursors are sent as 'page[after]': if that is not their name, set cursor_param" in text
    ) == is_repeated
    assert (paginator.page_number, paginator.finished) == (len(pages), False)


def test_pages_that_share_some_records_or_are_empty_are_fine(paginator):
    for page in (more("a", 1, 2), more("b", 2, 3), more("c"), page_with({"hasMore": False})):
        paginator.advance(page)

    assert paginator.finished


def test_records_are_the_same_by_their_identifiers_even_when_one_was_changed(paginator):
    second = more("b", 1, 2)
    second.data[0].form_name = "renamed meanwhile"
    paginator.advance(more("a", 1, 2))

    assert "same records" in refusal(paginator, second)


class Property(Record):
    property_id: int


@pytest.mark.parametrize("model", [None, Property])
def test_records_without_an_identifier_are_compared_completely(paginator, model):
    def page(number: int) -> Page[Any]:
        body = {
            "data": [{"id": None, "propertyID": number}],
            "pagination": {"hasMore": True, "nextCursor": number},
        }
        return parse_page(json.dumps(body).encode(), model, number=number, timezone=UTC)

    paginator.advance(page(1))
    paginator.advance(page(2))

    with pytest.raises(FsmPaginationError, match="same records"):
        paginator.advance(page(2))
