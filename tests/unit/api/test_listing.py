"""A listing continues after a failed page, and compares its records with the service's totals."""

import json
import logging
import tracemalloc
from datetime import UTC

import pytest

from fsm_provider.api import FsmPaginationError, FsmRateLimitedError
from fsm_provider.api.listing import CursorPaginator, Listing
from fsm_provider.api.models import LIST_FORMS, Form
from fsm_provider.api.parsing import parse_page
from fsm_provider.testing import faults


@pytest.fixture
def client(service, make_client):
    service.seed_forms(45)
    return make_client(service, max_retries=0)


@pytest.fixture
def listing(client):
    return client.pages(LIST_FORMS.path, model=LIST_FORMS.response)


def identifiers(pages):
    ids = []
    for page in pages:
        ids += [form.id for form in page.data]
    return ids


def stored_ids(service):
    return [form["id"] for form in service.forms]


def without_first(page):
    return {**page, "data": page["data"][1:]}


def with_total(total):
    def rewrite(page):
        return {**page, "meta": {**page["meta"], "totalRecords": total}}

    return faults.Rewrite(rewrite)


def test_a_page_that_failed_is_asked_for_again_and_those_before_it_are_not(service, listing):
    service.fail("GET", "/forms", faults.Status(429), calls=(3, 4))
    first = identifiers([next(listing), next(listing)])
    for _ in range(2):
        with pytest.raises(FsmRateLimitedError):
            next(listing)
        assert listing.paginator.page_number == 3

    rest = identifiers(listing)

    assert first + rest == stored_ids(service)
    statuses = [request.status for request in service.requests]
    assert statuses == [200, 200, 429, 429, 200, 200, 200]
    assert listing.paginator.finished is True
    assert listing.mismatch is None
    with pytest.raises(StopIteration):
        next(listing)


@pytest.mark.parametrize(("missing", "last"), [(1, 44), (0, 46)])
def test_a_record_that_is_missing_is_a_mismatch_that_names_three_numbers(
    service, listing, missing, last
):
    service.fail("GET", "/forms", faults.Rewrite(without_first), calls=[3] * missing)
    service.fail("GET", "/forms", with_total(str(last)), call=5)
    pages = iter(listing)
    for _ in range(4):
        next(pages)
        assert listing.mismatch is None, "of a listing that is not finished nothing is known"
    next(pages)

    expected = (
        f"{45 - missing} distinct records were read, "
        f"the service counted 45 at the first page and {last} at the last"
    )
    assert listing.mismatch is not None
    assert listing.mismatch.startswith(expected)


def test_a_record_that_comes_twice_does_not_hide_one_that_is_missing(service, listing):
    service.fail("GET", "/forms", faults.RepeatedRecords(), every=True)
    service.fail("GET", "/forms", faults.Rewrite(without_first), call=1)

    ids = identifiers(listing)

    assert len(ids) > 45
    assert listing.mismatch.startswith("44 distinct records were read")


@pytest.mark.parametrize(
    ("total", "read"),
    [
        (45, 45),
        ("45", 45),
        (" 45", None),
        (None, None),
        ("-1", None),
        ([45], None),
        ("9" * 5000, None),
    ],
)
@pytest.mark.parametrize("calls", [(1,), (5,), (1, 2, 3, 4, 5)])
def test_a_total_that_cannot_be_read_makes_no_mismatch_and_is_told(
    service, listing, total, read, calls, caplog
):
    service.fail("GET", "/forms", with_total(total), calls=calls)
    is_in_first_page = 1 in calls
    is_unreadable = read is None and total is not None

    ids = identifiers(listing)

    assert len(ids) == 45
    assert listing.first_total == (read if is_in_first_page else 45)
    assert listing.mismatch is None
    is_told = "whether the listing is complete cannot be checked" in caplog.text
    assert is_told == (is_in_first_page and is_unreadable)


@pytest.mark.parametrize("meta", ["x", [1]])
def test_a_listing_whose_meta_is_no_object_is_read(service, listing, meta):
    service.fail("GET", "/forms", faults.Rewrite(lambda page: {**page, "meta": meta}))

    assert identifiers(listing) == stored_ids(service)
    assert listing.mismatch is None


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "list_lazily",
    [
        lambda client: client.list_forms(),
        lambda client: client.list_forms(created_since="2000-01-01"),
        lambda client: client.paginate("/forms"),
    ],
    ids=["list_forms", "list_forms, filtered", "paginate, untyped"],
)
def test_a_lazy_listing_warns_of_a_mismatch_at_its_end_and_once(
    service, client, caplog, list_lazily
):
    service.fail("GET", "/forms", faults.Rewrite(without_first), calls=(2, 7))

    records = list_lazily(client)
    for _ in range(40):
        next(records)
    assert warnings(caplog) == []
    assert len(list(records)) == 4
    again = list_lazily(client)
    assert len(list(again)) == 44

    [message] = warnings(caplog)
    assert f"GET {service.base_url}/forms: 44 distinct records were read" in message
    assert "counted 45 at the first page and 45 at the last" in message


def test_a_listing_that_is_not_read_to_its_end_warns_of_nothing(service, client, caplog):
    service.fail("GET", "/forms", faults.Rewrite(without_first), call=1)

    with pytest.raises(FsmPaginationError, match="max_pages=2"):
        list(client.paginate("/forms", max_pages=2))
    next(client.list_forms())

    assert warnings(caplog) == []


def read_all(ids, *, model=Form, total=None, size=100):
    """List records with these identifiers, as if the service counted ``total`` of them."""
    if total is None:
        total = len(ids)

    def fetch(paginator):
        number = paginator.page_number
        rest = ids[(number - 1) * size :]
        body = {
            "meta": {"totalRecords": total},
            "pagination": {"hasMore": len(rest) > size, "nextCursor": number},
            "data": [{"id": identifier} for identifier in rest[:size]],
        }
        return parse_page(json.dumps(body).encode(), model, number=number, timezone=UTC)

    listing = Listing("https://api.example.com/forms", CursorPaginator("cursor"), fetch)
    for _ in listing:
        pass
    return listing


@pytest.mark.parametrize(
    "ids",
    [
        range(1, 251),
        [7, 7, 7, 8, 9, 9, 8, 7, 10, 1],
        [-5, 0, 2**62, -(2**62), 2**63 - 1, -(2**63)],
        list(range(0, 5000, 7)) + list(range(0, 5000, 5)),
    ],
)
def test_distinct_identifiers_are_counted_in_any_order(ids):
    ids = list(ids)

    listing = read_all(ids, total=10**6)

    assert listing.mismatch.startswith(f"{len(set(ids))} distinct records")


@pytest.mark.parametrize("ids", [["a", "b"], [1, 2**63], [1, None]])
def test_identifiers_that_are_no_integers_are_not_counted(ids):
    listing = read_all(ids, model=None, total=5)

    assert listing.mismatch is None


def test_counting_a_listing_takes_little_memory():
    count = 150_000
    ids = [number * 70_001 % count for number in range(count)]
    listing = read_all(ids, model=None, size=1000, total=1)

    tracemalloc.start()
    mismatch = listing.mismatch
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert mismatch.startswith(f"{count} distinct records")
    assert peak < 35 * count
