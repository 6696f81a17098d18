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


def ids(pages):
    return [[record.get("id") for record in page["data"]] for page in pages]


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
    right = listing("GET", path).json()
    listing.service.fail("GET", path, faults.pagination(**fields))

    page = listing("GET", path).json()

    assert page["data"] == right["data"]
    sent = {**right["pagination"], **fields}
    assert page["pagination"] == {
        name: value for name, value in sent.items() if value is not faults.ABSENT
    }


def test_fields_of_one_record_may_be_wrong_absent_or_unknown(listing):
    wrong = faults.record(-1, id=faults.ABSENT, propertyID=["7"], unknown={"a": 1})
    listing.service.fail("GET", "/forms", wrong)

    first, last = listing("GET", "/forms").json()["data"]

    right = listing.service.forms
    assert first == right[0]
    assert last == {k: v for k, v in right[1].items() if k != "id"} | {
        "propertyID": ["7"],
        "unknown": {"a": 1},
    }
    assert listing("GET", "/forms").json()["data"] == right[:2]


@pytest.mark.parametrize("path", LISTINGS)
def test_a_cursor_may_repeat_at_once(listing, path):
    listing.service.fail("GET", path, faults.RepeatedCursor(), every=True)
    right = listing.service.forms if path == "/forms" else listing.service.asset_dynamic_fields

    pages = list(islice(listing.pages(path), 4))

    assert len(set(cursors(pages))) == 1
    assert [page["data"] for page in pages] == [right[:2], right[2:4], right[2:4], right[2:4]]
    assert [page["pagination"]["hasMore"] for page in pages] == [
        "true" if path == "/forms" else True
    ] * 4


def test_cursors_may_repeat_in_a_cycle(listing):
    listing.service.fail("GET", "/forms", faults.RepeatedCursor(cycle=2), every=True)

    pages = list(islice(listing.pages("/forms"), 6))

    one, two, *_ = cursors(pages)
    assert one != two
    assert cursors(pages) == [one, two] * 3
    assert ids(pages) == [
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

    assert all(page["data"] == pages[0]["data"] for page in pages)
    assert len(set(cursors(pages))) == 4


def test_ignored_filters_filter_nothing(listing):
    listing.service.settings.ignore_filters = True
    filters = {"propertyID": "99", "lastUpdatedOnDateTime[gte]": "no time"}

    assert ids(listing.pages("/forms", **filters)) == [[5001, 5002], [5003, 5004], [5005, 5006]]


@pytest.mark.parametrize(
    ("path", "expected"), [("/forms", ["0", "1", ""]), ("/assetDynamicFieldValues", [0, 1, None])]
)
def test_cursors_may_count_from_zero(listing, path, expected):
    listing.service.settings.cursors_from_zero = True

    for _ in range(2):
        assert cursors(listing.pages(path)) == expected
    assert [len(page["data"]) for page in listing.pages(path)] == [2, 2, 2]
