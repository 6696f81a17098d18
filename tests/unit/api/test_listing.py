"""A listing that continues after a failed page, and compares its records with the service's totals."""

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
    return [form.id for page in pages for form in page.data]


def without_first(page):
    return {**page, "data": page["data"][1:]}


def with_total(total):
    return faults.Rewrite(lambda page: {**page, "meta": {**page["meta"], "totalRecords": total}})


def test_a_page_that_failed_is_asked_for_again_and_those_before_it_are_not(service, listing):
    service.fail("GET", "/forms", faults.Status(429), calls=(3, 4))
    first = identifiers([next(listing), next(listing)])
    for _ in range(2):
        with pytest.raises(FsmRateLimitedError):
            next(listing)
        assert listing.paginator.page_number == 3

    rest = identifiers(listing)

    assert first + rest == [form["id"] for form in service.forms]
    assert [request.status for request in service.requests] == [200, 200, 429, 429, 200, 200, 200]
    assert (listing.paginator.finished, listing.mismatch) == (True, None)
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

    assert listing.mismatch is not None
    assert listing.mismatch.startswith(
        f"{45 - missing} distinct records were read, "
        f"the service counted 45 at the first page and {last} at the last"
    )


def test_a_record_that_comes_twice_does_not_hide_one_that_is_missing(service, listing):
    service.fail("GET", "/forms", faults.RepeatedRecords(), every=True)
    service.fail("GET", "/forms", faults.Rewrite(without_first), call=1)

    read = identifiers(listing)

    assert len(read) > 45
    assert listing.mismatch.startswith("44 distinct records were read")


@pytest.mark.parametrize(
    ("total", "read"),
    [(45, 45), ("45", 45), *((one, None) for one in (" 45", None, "-1", [45], "9" * 5000))],
)
@pytest.mark.parametrize("calls", [(1,), (5,), (1, 2, 3, 4, 5)])
def test_a_total_that_cannot_be_read_makes_no_mismatch_and_is_told(
    service, listing, total, read, calls, caplog
):
    service.fail("GET", "/forms", with_total(total), calls=calls)

    assert len(identifiers(listing)) == 45
    assert listing.first_total == (read if 1 in calls else 45)
    assert listing.mismatch is None
    is_told = "whether the listing is complete cannot be checked" in caplog.text
    assert is_told == (1 in calls and read is None and total is not None)


@pytest.mark.parametrize("meta", ["x", [1]])
def test_a_listing_whose_meta_is_no_object_is_read(service, listing, meta):
    service.fail("GET", "/forms", faults.Rewrite(lambda page: {**page, "meta": meta}))

    assert identifiers(listing) == [form["id"] for form in service.forms]
    assert listing.mismatch is None


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def lists(client):
    return {
        "list_forms": client.list_forms,
        "list_forms, filtered": lambda: client.list_forms(created_since="2000-01-01"),
        "paginate, untyped": lambda: client.paginate("/forms"),
    }


@pytest.mark.parametrize("name", ["list_forms", "list_forms, filtered", "paginate, untyped"])
def test_a_lazy_listing_warns_of_a_mismatch_at_its_end_and_once(service, client, caplog, name):
    service.fail("GET", "/forms", faults.Rewrite(without_first), calls=(2, 7))
    records = lists(client)[name]()
    for _ in range(40):
        next(records)
    assert warnings(caplog) == []

    assert len(list(records)) == 4
    assert len(list(lists(client)[name]())) == 44

    (message,) = warnings(caplog)
    assert f"GET {service.base_url}/forms: 44 distinct records were read" in message
    assert "counted 45 at the first page and 45 at the last" in message


def test_a_listing_that_is_not_read_to_its_end_warns_of_nothing(service, client, caplog):
    service.fail("GET", "/forms", faults.Rewrite(without_first), call=1)

    with pytest.raises(FsmPaginationError, match="max_pages=2"):
        list(client.paginate("/forms", max_pages=2))
    next(client.list_forms())

    assert warnings(caplog) == []


def read_all(ids, *, model=Form, total=None, size=100):
    """List what a service would send that counts ``total``."""

    def fetch(at):
        chunk = ids[(at.page_number - 1) * size :][: size + 1]
        body = {
            "meta": {"totalRecords": len(ids) if total is None else total},
            "pagination": {"hasMore": len(chunk) > size, "nextCursor": at.page_number},
            "data": [{"id": identifier} for identifier in chunk[:size]],
        }
        return parse_page(json.dumps(body).encode(), model, number=at.page_number, timezone=UTC)

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

    assert read_all(ids, total=10**6).mismatch.startswith(f"{len(set(ids))} distinct records")


@pytest.mark.parametrize("ids", [["a", "b"], [1, 2**63], [1, None]])
def test_identifiers_that_are_no_integers_are_not_counted(ids):
    listing = read_all(ids, model=None, total=5)

    assert listing.mismatch is None


def test_counting_a_listing_takes_little_memory():
    numbers = 150_000
    listing = read_all(
        [number * 70_001 % numbers for number in range(numbers)], model=None, size=1000, total=1
    )
    tracemalloc.start()
    mismatch = listing.mismatch
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert mismatch.startswith(f"{numbers} distinct records")
    assert most < 35 * numbers
