"""A listing that shifts while it is exported."""

import logging

import pytest

from fsm_provider.api import FsmError
from fsm_provider.testing import faults
from tests.unit.conftest import contents
from tests.unit.transfers.exports import START, export, export_assets, ids

SECOND_PAGES = (2, 5)


@pytest.fixture(autouse=True)
def connected(service, connect):
    service.seed_forms(30, first_created=START)
    connect(service)


def stored_forms(service):
    return service._state.forms.records


def move_first_to_the_end(service):
    forms = stored_forms(service)
    first = forms.pop(0)
    forms.append(first)


def delete_first(service):
    del stored_forms(service)[0]


def count_readings(service):
    """Return how often the forms were listed from their first page on."""
    count = 0
    for request in service.requests_to("GET", "/forms"):
        if "cursor" not in dict(request.query):
            count += 1
    return count


def shift(service, change, calls):
    service.fail("GET", "/forms", faults.Before(lambda: change(service)), calls=calls)


def warnings_of_totals(caplog):
    """Return what this package warns of; Airflow 2 warns of an operator that no task executes."""
    messages = []
    for record in caplog.records:
        is_ours = "fsm_provider" in record.pathname
        is_warning = record.levelno >= logging.WARNING
        if is_ours and is_warning and "totalRecords" in record.message:
            messages.append(record.message)
    return messages


@pytest.mark.parametrize("change", [move_first_to_the_end, delete_first])
def test_a_listing_that_shifted_is_read_again(service, storage, change):
    shift(service, change, [2])

    export(storage)

    assert count_readings(service) == 2
    stored_ids = [form["id"] for form in service.forms]
    assert sorted(ids(storage)["forms.jsonl"]) == sorted(stored_ids)


def test_readings_that_go_on_differing_fail_and_leave_the_export_before(service, storage):
    export(storage)
    before = contents(storage)
    service.clear_requests()
    service.update_form(5030, formName="new")
    shift(service, delete_first, SECOND_PAGES)

    with pytest.raises(FsmError, match=r"nothing is exported: two readings") as raised:
        export(storage)

    assert not raised.value.permanent
    assert count_readings(service) == 2
    assert contents(storage) == before


@pytest.mark.parametrize("total", [5, 1000])
def test_a_total_that_counts_something_else_is_logged_once(service, storage, caplog, total):
    def replace_total(page):
        return {**page, "meta": {**page["meta"], "totalRecords": str(total)}}

    service.fail("GET", "/forms", faults.Rewrite(replace_total), every=True)

    result = export(storage)

    assert result["rows"] == 30
    assert count_readings(service) == 2
    [warning] = warnings_of_totals(caplog)
    assert f"30 distinct records were read, the service counted {total}" in warning


def test_asset_fields_are_read_again_where_their_listing_has_totals(service, storage):
    service.add_asset_dynamic_field("Make")
    with_total = faults.Rewrite(lambda page: {**page, "meta": {"totalRecords": 2}})
    service.fail("GET", "/assetDynamicFieldValues", with_total, call=1)

    result = export_assets(storage)

    assert result["rows"]
    assert len(service.requests) == 2
