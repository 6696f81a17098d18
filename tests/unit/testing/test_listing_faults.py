"""Listings that go wrong from page to page."""

from __future__ import annotations

from itertools import islice

import pytest

from fsm_provider.testing import faults

LISTINGS = ["/forms", "/assetDynamicFieldValues"]


@pytest.fixture
def listing(serve):
    """A client of a service with three pages of two records in either listing."""
    call = serve(page_size=2)
    call.service.seed_forms(6)
    for _ in range(6):
        call.service.add_asset_dynamic_field()
    return call


def ids(page):
    return [record["id"] for record in page["data"]]


def cursors(pages):
    return [page["pagination"]["nextCursor"] for page in pages]


@pytest.mark.parametrize(
    "fields",
    [
        {"hasMore": 1, "nextCursor": None},
        {"nextCursor": {"a": 1}, "unknown": 3, "hasMore": faults.ABSENT},
    ],
)
@pytest.mark.parametrize("path", LISTINGS)
def test_pagination_fields_may_have_any_value_or_be_absent(listing, path, fields):
    correct = listing("GET", path).json()
    listing.service.fail("GET", path, faults.pagination(**fields))

    page = listing("GET", path).json()

    expected = {**correct["pagination"], **fields}
    if expected["hasMore"] is faults.ABSENT:
        del expected["hasMore"]
    assert page["data"] == correct["data"]
    assert page["pagination"] == expected


def test_fields_of_one_record_may_be_wrong_absent_or_unknown(listing):
    wrong = faults.record(-1, id=faults.ABSENT, propertyID=["7"], unknown={"a": 1})
    listing.service.fail("GET", "/forms", wrong)

    first, last = listing("GET", "/forms").json()["data"]

    correct_first, correct_last = listing.service.forms[:2]
    expected = {**correct_last, "propertyID": ["7"], "unknown": {"a": 1}}
    del expected["id"]
    assert first == correct_first
    assert last == expected
    assert listing("GET", "/forms").json()["data"] == [correct_first, correct_last]


@pytest.mark.parametrize(
    ("path", "has_more"),
    [
        ("/forms", "true"),
        ("/assetDynamicFieldValues", True),
    ],
)
def test_a_cursor_may_repeat_at_once(listing, path, has_more):
    listing.service.fail("GET", path, faults.RepeatedCursor(), every=True)
    records = listing.service.forms
    if path == "/assetDynamicFieldValues":
        records = listing.service.asset_dynamic_fields

    first, *others = islice(listing.pages(path), 4)

    assert len(set(cursors([first, *others]))) == 1
    assert first["data"] == records[:2]
    assert first["pagination"]["hasMore"] == has_more
    assert len(others) == 3
    for page in others:
        assert page["data"] == records[2:4]
        assert page["pagination"]["hasMore"] == has_more


def test_cursors_may_repeat_in_a_cycle(listing):
    listing.service.fail("GET", "/forms", faults.RepeatedCursor(cycle=2), every=True)

    pages = list(islice(listing.pages("/forms"), 6))

    first_cursor, second_cursor, *_ = cursors(pages)
    assert first_cursor != second_cursor
    assert cursors(pages) == [first_cursor, second_cursor] * 3
    assert list(map(ids, pages)) == [
        [5001, 5002],
        [5003, 5004],
        [5005, 5006],
        [5003, 5004],
        [5005, 5006],
        [5003, 5004],
    ]


@pytest.mark.parametrize("path", LISTINGS)
def test_an_ignored_cursor_leads_to_the_first_page_and_another_cursor(listing, path):
    listing.service.settings.ignore_cursor = True

    pages = list(islice(listing.pages(path), 4))

    for page in pages:
        assert page["data"] == pages[0]["data"]
    assert len(set(cursors(pages))) == 4


def test_ignored_filters_filter_nothing(listing):
    listing.service.settings.ignore_filters = True
    filters = {"propertyID": "99", "lastUpdatedOnDateTime[gte]": "no time"}

    pages = listing.pages("/forms", **filters)

    assert list(map(ids, pages)) == [[5001, 5002], [5003, 5004], [5005, 5006]]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/forms", ["0", "1", ""]),
        ("/assetDynamicFieldValues", [0, 1, None]),
    ],
)
def test_cursors_may_count_from_zero(listing, path, expected):
    listing.service.settings.cursors_from_zero = True

    for _ in range(2):
        assert cursors(listing.pages(path)) == expected
    for page in listing.pages(path):
        assert len(page["data"]) == 2
