"""A listing that shifts while it is exported."""

import logging
from datetime import UTC, datetime

import pytest

from fsm_provider.api import FsmError
from fsm_provider.testing import faults
from tests.unit.conftest import contents
from tests.unit.transfers.test_exports import export, export_assets, ids

START = datetime(2026, 1, 30, 22, tzinfo=UTC)
SECOND_PAGES = (2, 5)


@pytest.fixture(autouse=True)
def connected(service, connect):
    service.seed_forms(30, first_created=START)
    connect(service)


def uri_for_records(service):
    return service._state.forms.records


def move_to_the_end(service):
    records = uri_for_records(service)
    records.append(records.pop(0))


def delete(service):
    del uri_for_records(service)[0]


def readings(service):
    return [
        dict(request.query).get("cursor") for request in service.requests_to("GET", "/forms")
    ].count(None)


def shift(service, change, calls):
    service.fail("GET", "/forms", faults.Before(lambda: change(service)), calls=calls)


def warnings(caplog):
    """What this package warns of; Airflow 2 warns of an operator that no task executes."""
    ours = [record for record in caplog.records if "fsm_provider" in record.pathname]
    return [record.message for record in ours if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("change", [move_to_the_end, delete])
def test_a_listing_that_shifted_is_read_again(service, storage, change):
    shift(service, change, [2])

    export(storage)

    assert readings(service) == 2
    assert sorted(ids(storage)["forms.jsonl"]) == sorted(
        record.record["id"] for record in uri_for_records(service)
    )


def test_readings_that_go_on_differing_fail_and_leave_the_export_before(service, storage):
    export(storage)
    before = contents(storage)
    service.clear_requests()
    service.update_form(5030, formName="new")
    shift(service, delete, SECOND_PAGES)

    with pytest.raises(FsmError, match=r"nothing is exported: two readings") as raised:
        export(storage)

    assert not raised.value.permanent
    assert readings(service) == 2
    assert contents(storage) == before


@pytest.mark.parametrize("total", [5, 1000])
def test_a_total_that_counts_something_else_is_logged_once(service, storage, caplog, total):
    rewrite = faults.Rewrite(
        lambda body: {**body, "meta": {**body["meta"], "totalRecords": str(total)}}
    )
    service.fail("GET", "/forms", rewrite, every=True)

    result = export(storage)

    assert result["rows"] == 30
    assert readings(service) == 2
    (warning,) = [message for message in warnings(caplog) if "totalRecords" in message]
    assert f"30 distinct records were read, the service counted {total}" in warning


def test_asset_fields_are_read_again_where_their_listing_has_totals(service, storage):
    service.add_asset_dynamic_field("Make")
    rewrite = faults.Rewrite(lambda body: {**body, "meta": {"totalRecords": 2}})
    service.fail("GET", "/assetDynamicFieldValues", rewrite, call=1)

    assert export_assets(storage)["rows"]

    assert len(service.requests) == 2
