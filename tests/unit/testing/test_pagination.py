from __future__ import annotations

from math import ceil

import pytest


def seed(service, path, count):
    """Add records to a listing, and return them."""
    for _ in range(count):
        if path == "/forms":
            service.add_form()
        elif path == "/jobs":
            service.add_job(7)
        else:
            service.add_asset_dynamic_field()
    if path == "/forms":
        return service.forms
    if path == "/jobs":
        return service.jobs
    return service.asset_dynamic_fields


def joined(pages):
    """Return the records of all pages."""
    records = []
    for page in pages:
        records += page["data"]
    return records


@pytest.mark.parametrize("path", ["/forms", "/assetDynamicFieldValues", "/jobs"])
@pytest.mark.parametrize("count", [0, 6, 7])
def test_every_record_is_listed_once_and_in_order(serve, path, count):
    call = serve(page_size=3)
    records = seed(call.service, path, count)

    pages = list(call.pages(path))

    assert joined(pages) == records
    assert len(pages) == max(1, ceil(count / 3))
    for page in pages[:-1]:
        assert len(page["data"]) == 3


def test_the_previous_cursor_leads_back_to_the_first_page(serve):
    call = serve(page_size=2)
    call.service.seed_forms(6)
    first, second, third = call.pages("/forms")

    def back(page):
        cursor = page["pagination"]["prevCursor"]
        return call("GET", "/forms", params={"cursor": cursor}).json()

    assert back(third)["data"] == second["data"]
    assert back(back(third))["data"] == first["data"]
    assert back(back(third))["pagination"]["prevCursor"] == ""


def test_filters_hold_on_every_page(serve):
    call = serve(page_size=2)
    call.service.seed_forms(9, property_ids=(1, 2))

    first, second = call.pages("/forms", propertyID="2")

    forms = joined([first, second])
    assert [form["propertyID"] for form in forms] == ["2"] * 4
    assert first["meta"]["totalRecords"] == "4"
    assert second["meta"]["totalRecords"] == "4"


@pytest.mark.parametrize("other", [{}, {"propertyID": "2"}])
def test_a_cursor_sent_with_other_filters_is_a_conflict(serve, other):
    call = serve(page_size=1)
    call.service.seed_forms(3)
    page = call("GET", "/forms", params={"propertyID": "1"}).json()
    cursor = page["pagination"]["nextCursor"]

    response = call("GET", "/forms", params={**other, "cursor": cursor})

    assert response.status_code == 409
    assert "filters" in response.json()["detail"]


@pytest.mark.parametrize("cursor", ["0", "", "abc"])
def test_a_cursor_that_was_not_issued_is_a_conflict(serve, cursor):
    call = serve(page_size=1)
    call.service.seed_forms(3)

    assert call("GET", "/forms", params={"cursor": cursor}).status_code == 409


def test_a_form_completed_during_a_listing_shifts_no_page(serve):
    call = serve(page_size=2)
    call.service.seed_forms(3)
    pages = call.pages("/forms")

    first = next(pages)
    call.service.add_form()
    listed = joined([first, *pages])

    assert listed == call.service.forms
