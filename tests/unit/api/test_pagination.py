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
    return CursorPaginator("page[after]")


def test_the_first_page_is_asked_for_without_a_cursor(paginator):
    assert paginator.params == {}
    assert paginator.page_number == 1
    assert not paginator.finished


@pytest.mark.parametrize("has_more", [True, "true", "True", "TRUE", 1, "1"])
def test_every_form_of_has_more_goes_on(paginator, has_more):
    paginator.advance(page_with({"hasMore": has_more, "nextCursor": "n"}, 1))

    assert (paginator.params, paginator.page_number) == ({"page[after]": "n"}, 2)
    assert not paginator.finished


@pytest.mark.parametrize("has_more", [False, "false", "False", "FALSE", 0, "0"])
@pytest.mark.parametrize("cursor", ["n", None])
def test_every_form_of_no_more_ends_the_listing(paginator, has_more, cursor):
    paginator.advance(page_with({"hasMore": has_more, "nextCursor": cursor}, 1))

    assert paginator.finished


@pytest.mark.parametrize(
    "pagination",
    [
        *[
            {"hasMore": value, "nextCursor": "n"}
            for value in (None, "", "yes", "Truee", 2, -1, 1.5, "2", [], {})
        ],
        *[{"nextCursor": "n"}, {}, None, "true", [], FRESH],
    ],
)
def test_has_more_that_says_nothing_is_an_error(paginator, pagination):
    assert "hasMore" in refusal(paginator, page_with(pagination, 1))
    assert not paginator.finished


@pytest.mark.parametrize("cursor", [None, "", "null"])
def test_more_without_a_cursor_is_an_error(paginator, cursor):
    assert "nextCursor" in refusal(paginator, more(cursor, 1))


def test_more_without_the_cursor_field_is_an_error(paginator):
    assert "nextCursor" in refusal(paginator, page_with({"hasMore": True}, 1))


@pytest.mark.parametrize("cursor", [0, "0"])
def test_cursor_zero_is_a_cursor(paginator, cursor):
    paginator.advance(more(cursor, 1))

    assert paginator.params == {"page[after]": "0"}


@pytest.mark.parametrize(
    "cursor", [12, "007", "b2Zmc2V0PTI=", "a&b=c d", "NULL", "none", "false", "1.50", 10**30]
)
def test_a_cursor_is_sent_as_it_came(paginator, cursor):
    paginator.advance(more(cursor, 1))

    assert paginator.params == {"page[after]": str(cursor)}


@pytest.mark.parametrize("cursor", [[], [1], {"next": 1}])
def test_a_cursor_of_another_type_is_an_error(paginator, cursor):
    assert "nextCursor" in refusal(paginator, more(cursor, 1))


@pytest.mark.parametrize(
    "cursors", [["a", "a"], ["a", "b", "a"], ["a", "b", "c", "b"], [1, 2, 1], [0, 0], [5, "5"]]
)
def test_a_cursor_seen_before_is_an_error(paginator, cursors):
    *fresh, again = cursors
    for identifier, cursor in enumerate(fresh):
        paginator.advance(more(cursor, identifier))

    assert "had before" in refusal(paginator, more(again, 99))


@pytest.mark.parametrize("model", [Form, AssetDynamicField, None])
@pytest.mark.parametrize(
    "last", [more, lambda _, *found, model: page_with({"hasMore": False}, *found, model=model)]
)
def test_the_records_of_the_page_before_are_an_error_with_a_fresh_cursor_too(paginator, model, last):
    paginator.advance(more("a", 1, 2, model=model))

    assert "same records" in refusal(paginator, last("b", 1, 2, model=model))


@pytest.mark.parametrize("model", [Form, None])
def test_records_are_the_same_by_their_identifiers_even_when_one_was_changed(paginator, model):
    first, second = more("a", 1, 2, model=model), more("b", 1, 2, model=model)
    if model is None:
        second.data[0]["formName"] = "renamed meanwhile"
    else:
        second.data[0].form_name = "renamed meanwhile"
    paginator.advance(first)

    assert "same records" in refusal(paginator, second)


def test_pages_that_share_only_some_records_are_fine(paginator):
    paginator.advance(more("a", 1, 2))
    paginator.advance(more("b", 2, 3))
    paginator.advance(more("c", 1, 2))

    assert paginator.page_number == 4


def test_two_empty_pages_in_a_row_are_fine(paginator):
    paginator.advance(more("a"))
    paginator.advance(more("b"))
    paginator.advance(page_with({"hasMore": False}, 1))

    assert paginator.finished


@pytest.mark.parametrize("max_pages", [1, 3])
def test_a_listing_of_more_than_max_pages_is_an_error(max_pages):
    paginator = CursorPaginator("page[after]", max_pages=max_pages)
    for number in range(1, max_pages):
        paginator.advance(more(number, number))

    assert f"max_pages={max_pages}" in refusal(paginator, more("next", 99))


def test_a_listing_of_just_max_pages_is_fine():
    paginator = CursorPaginator("cursor", max_pages=2)
    paginator.advance(more("a", 1))
    paginator.advance(page_with({"hasMore": False}, 2))

    assert paginator.finished


def test_the_contract_allows_ten_thousand_pages():
    paginator = CursorPaginator("cursor")
    for number in range(1, 10_000):
        paginator.advance(more(number))

    assert "max_pages=10000" in refusal(paginator, more("next"))


@pytest.mark.parametrize(
    ("has_more", "cursor", "identifier"),
    [
        ("yes", "next", 2),
        (True, None, 2),
        (True, [], 2),
        (True, "seen", 2),
        (True, "next", 1),
        (True, "next", 2),
    ],
)
def test_every_error_names_the_page_and_the_setting_with_its_present_value(has_more, cursor, identifier):
    paginator = CursorPaginator("page[after]", max_pages=2)
    paginator.advance(more("seen", 1))

    text = refusal(paginator, page_with({"hasMore": has_more, "nextCursor": cursor}, identifier))

    assert text.startswith("page 2 of the listing")
    assert "cursor_param" in text
    assert "'page[after]'" in text


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


def test_a_boolean_is_no_cursor(paginator):
    assert "neither text nor integer" in refusal(paginator, more(True, 1))
