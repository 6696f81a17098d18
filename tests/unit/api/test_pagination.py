from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.listing import CursorPaginator
from fsm_provider.api.models import AssetDynamicField, Form, Page, Record
from fsm_provider.api.parsing import parse_page

ABSENT = object()


def page_with(pagination: Any, *identifiers: int, model: Any = Form) -> Page[Any]:
    """Read a page as it comes over the wire; without ``pagination`` where that is ABSENT."""
    name = "dynamicFieldID" if model is AssetDynamicField else "id"
    body: dict[str, Any] = {"data": [{name: identifier} for identifier in identifiers]}
    if pagination is not ABSENT:
        body["pagination"] = pagination
    return parse_page(json.dumps(body).encode(), model, number=1, timezone=UTC)


def has_more(value: Any) -> Page[Any]:
    return page_with({"hasMore": value, "nextCursor": "n"}, 1)


def more(cursor: Any, *identifiers: int, model: Any = Form) -> Page[Any]:
    return page_with({"hasMore": True, "nextCursor": cursor}, *identifiers, model=model)


LAST = {"hasMore": False}


def refusal(paginator: CursorPaginator, page: Page[Any]) -> str:
    with pytest.raises(FsmPaginationError) as raised:
        paginator.advance(page)
    return str(raised.value)


@pytest.fixture
def paginator() -> CursorPaginator:
    return CursorPaginator("page[after]", max_pages=4)


@pytest.mark.parametrize("value", [True, "true", "TRUE", 1, "1"])
def test_every_form_of_has_more_goes_on(paginator, value):
    paginator.advance(has_more(value))

    assert paginator.params == {"page[after]": "n"}
    assert paginator.page_number == 2
    assert paginator.finished is False


@pytest.mark.parametrize("value", [False, "false", "False", "FALSE", 0, "0"])
@pytest.mark.parametrize("cursor", ["n", None])
def test_every_form_of_no_more_ends_the_listing(paginator, value, cursor):
    paginator.advance(page_with({"hasMore": value, "nextCursor": cursor}, 1))

    assert paginator.finished


@pytest.mark.parametrize("cursor", [0, "007", "a&b=c d", "none", 10**30])
def test_a_cursor_is_sent_as_it_came(paginator, cursor):
    paginator.advance(more(cursor, 1))

    assert paginator.params == {"page[after]": str(cursor)}


@pytest.mark.parametrize(
    ("problem", "pages"),
    [
        ("hasMore", [has_more(None)]),
        ("hasMore", [has_more("")]),
        ("hasMore", [has_more("yes")]),
        ("hasMore", [has_more("Truee")]),
        ("hasMore", [has_more(2)]),
        ("hasMore", [has_more(-1)]),
        ("hasMore", [has_more(1.5)]),
        ("hasMore", [has_more("2")]),
        ("hasMore", [has_more([])]),
        ("hasMore", [has_more({})]),
        ("hasMore", [page_with({"nextCursor": "n"}, 1)]),
        ("hasMore", [page_with({}, 1)]),
        ("hasMore", [page_with(None, 1)]),
        ("hasMore", [page_with("true", 1)]),
        ("hasMore", [page_with([], 1)]),
        ("hasMore", [page_with(ABSENT, 1)]),
        ("no nextCursor", [more(None, 1)]),
        ("no nextCursor", [more("", 1)]),
        ("no nextCursor", [more("null", 1)]),
        ("no nextCursor", [page_with({"hasMore": True}, 1)]),
        ("neither text nor integer", [more(True, 1)]),
        ("neither text nor integer", [more([], 1)]),
        ("neither text nor integer", [more([1], 1)]),
        ("neither text nor integer", [more({"next": 1}, 1)]),
        ("had before", [more("a", 0), more("a", 1)]),
        ("had before", [more("a", 0), more("b", 1), more("c", 2), more("b", 3)]),
        ("had before", [more(0, 0), more(0, 1)]),
        ("had before", [more(5, 0), more("5", 1)]),
        ("same records", [more("a", 1, 2), more("b", 1, 2)]),
        (
            "same records",
            [
                more("a", 1, 2, model=AssetDynamicField),
                more("b", 1, 2, model=AssetDynamicField),
            ],
        ),
        ("same records", [more("a", 1, 2, model=None), more("b", 1, 2, model=None)]),
        ("same records", [more("a", 1, 2), page_with(LAST, 1, 2)]),
        ("same records", [more("a", 1), more("b", 2), more("c", 2)]),
        ("max_pages=4", [more(0, 0), more(1, 1), more(2, 2), more(3, 3)]),
    ],
)
def test_a_page_that_does_not_lead_on_is_an_error(paginator, problem, pages):
    *fine, last = pages
    for page in fine:
        paginator.advance(page)

    text = refusal(paginator, last)

    assert text.startswith(f"page {len(pages)} of the listing")
    assert problem in text
    advice = "Cursors are sent as 'page[after]': if that is not their name, set cursor_param"
    is_repeated = problem in ("had before", "same records")
    assert (advice in text) == is_repeated
    assert paginator.page_number == len(pages)
    assert paginator.finished is False


def test_pages_that_share_some_records_or_are_empty_are_fine(paginator):
    paginator.advance(more("a", 1, 2))
    paginator.advance(more("b", 2, 3))
    paginator.advance(more("c"))
    paginator.advance(page_with(LAST))

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
