from __future__ import annotations

from functools import partial

import pytest


def seed(service, path, count):
    add = {"/forms": service.add_form, "/jobs": partial(service.add_job, 7)}
    for _ in range(count):
        add.get(path, service.add_asset_dynamic_field)()


@pytest.mark.parametrize("path", ["/forms", "/assetDynamicFieldValues", "/jobs"])
@pytest.mark.parametrize("count", [0, 6, 7])
def test_every_record_is_listed_once_and_in_order(serve, path, count):
    call = serve(page_size=3)
    seed(call.service, path, count)
    added = {"/forms": call.service.forms, "/jobs": call.service.jobs}
    records = added.get(path, call.service.asset_dynamic_fields)

    pages = [page["data"] for page in call.pages(path)]

    assert [record for page in pages for record in page] == records
    assert [len(page) for page in pages[:-1]] == [3] * (len(pages) - 1)
    assert len(pages) == max(1, -(-count // 3))


def test_the_previous_cursor_leads_back_to_the_first_page(serve):
    call = serve(page_size=2)
    call.service.seed_forms(6)
    first, second, third = call.pages("/forms")

    def back(page):
        return call("GET", "/forms", params={"cursor": page["pagination"]["prevCursor"]}).json()

    assert back(third)["data"] == second["data"]
    assert back(back(third))["data"] == first["data"]
    assert back(back(third))["pagination"]["prevCursor"] == ""


def test_filters_hold_on_every_page(serve):
    call = serve(page_size=2)
    call.service.seed_forms(9, property_ids=(1, 2))

    pages = list(call.pages("/forms", propertyID="2"))

    assert [form["propertyID"] for page in pages for form in page["data"]] == ["2"] * 4
    assert [page["meta"]["totalRecords"] for page in pages] == ["4", "4"]


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

    listed = first["data"] + [form for page in pages for form in page["data"]]

    assert listed == call.service.forms
