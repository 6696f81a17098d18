"""The bound that Airflow's clock gives a form sensor is read by the service's clock."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout

from fsm_provider.api.forms import format_time
from fsm_provider.testing import faults
from tests.unit.sensors.conftest import Run

HOURS = timedelta(hours=2)
CREATED = "createdOnDateTime[gte]"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def begun_now():
    """The context of a run that a person has started just now."""
    run = SimpleNamespace(run_after=datetime.now(UTC))
    return {"data_interval_start": None, "dag_run": run}


def bounds(service):
    """The bounds of the sensor's own listings."""
    listings = [dict(request.query) for request in service.requests_to("GET", "/forms")]
    return {query[CREATED] for query in listings if "propertyID" in query and CREATED in query}


@pytest.mark.parametrize("offset", [-HOURS, HOURS])
def test_a_form_completed_during_the_run_counts_and_one_of_the_last_visit_does_not(
    service, run, soon, offset
):
    service.settings.clock_offset = offset
    last_visit = service.settings.now() - timedelta(minutes=30)
    service.add_form(property_id=2, id=1, created=last_visit)
    soon(service.add_form, polls=3, property_id=2, id=900)

    ids = run(property_id=2, xcom="ids", context=begun_now(), timeout=60)

    assert ids == [900]


@pytest.mark.parametrize(
    "given",
    [
        lambda now: {"since": now.isoformat()},
        lambda now: {"updated_since": now.isoformat()},
        lambda now: {"job": {"id": 1, "createdOnDateTime": now.isoformat()}},
    ],
    ids=["since", "updated_since", "the record of a job"],
)
def test_a_time_that_a_person_or_the_service_has_given_is_not_moved(service, run, given):
    service.settings.clock_offset = -HOURS
    service.add_form(property_id=2)

    with pytest.raises(AirflowSensorTimeout):
        run(property_id=2, timeout=1, context=begun_now(), **given(datetime.now(UTC)))
    assert len(bounds(service)) <= 1


@pytest.mark.parametrize(
    "fault", [faults.CorrectResponse(), faults.Delay(7)], ids=["at once", "slow"]
)
@pytest.mark.parametrize("seconds", [-3, 3])
def test_seconds_are_no_difference(service, seconds, fault):
    service.settings.clock_offset = timedelta(seconds=seconds)
    service.fail("GET", "/forms", fault)
    service.add_form(property_id=2, id=900, created=datetime.now(UTC) + timedelta(seconds=20))
    context = begun_now()

    assert Run("poke")(property_id=2, xcom="ids", context=context) == [900]
    assert bounds(service) == {format_time(context["dag_run"].run_after)}


@pytest.mark.parametrize(("offset", "times"), [(HOURS, 1), (timedelta(seconds=-30), 0)])
def test_a_difference_of_more_than_a_minute_is_said_once(service, run, soon, logged, offset, times):
    service.settings.clock_offset = offset
    soon(service.add_form, polls=5, property_id=2, id=900)

    assert run(property_id=2, xcom="ids", context=begun_now()) == [900]

    said = logged("The service's clock is ")
    assert len(said) == times
    for text in said:
        assert text.startswith("The service's clock is +7200 s from Airflow's, so forms count ")
        assert text.endswith("correct the clocks, or the connection's server_timezone")


def test_a_clock_that_only_a_later_poll_shows_is_read_then(service, deferred_run, soon):
    """The state that passes between worker and triggerer says that it is not known yet."""
    service.settings.clock_offset = -HOURS
    service.fail("GET", "/forms", faults.Status(503), call=1)
    soon(service.add_form, polls=2, property_id=2, id=900)

    ids = deferred_run(property_id=2, xcom="ids", context=begun_now(), failure_tolerance=600)

    assert ids == [900]
    waits = [deferral.trigger.wait for deferral in deferred_run.deferrals]
    assert waits[0]["clock_offset"] is None


def test_the_first_listing_decides_for_the_deferred_wait(service, deferred_run, soon):
    service.settings.clock_offset = -HOURS

    def correct_the_clock():
        service.settings.clock_offset = timedelta(0)
        service.add_form(property_id=2, id=900)

    soon(correct_the_clock, polls=4)

    assert deferred_run(property_id=2, xcom="ids", context=begun_now()) == [900]
    assert len(bounds(service)) == 2  # Airflow's of the first listing, and the service's
    waits = [deferral.trigger.wait for deferral in deferred_run.deferrals]
    assert {round(wait["clock_offset"] / 60) for wait in waits} == {-120}


@pytest.mark.parametrize("hours", [-5, 1])
def test_a_zone_that_the_connection_lacks_loses_no_form(service, run, soon, hours):
    """As of a service in London, where nobody has set server_timezone, in summer."""

    def in_local_time(page):
        for record in page["data"]:
            record["createdOnDateTime"] = local(record["createdOnDateTime"])
        page["meta"]["serverTime"] = local(page["meta"]["serverTime"])
        return page

    def local(time):
        moved = datetime.fromisoformat(time) + timedelta(hours=hours)
        return moved.isoformat(timespec="milliseconds").replace("+00:00", "")

    service.fail("GET", "/forms", faults.Rewrite(in_local_time), every=True)
    soon(service.add_form, polls=3, property_id=2, id=900)

    assert run(property_id=2, xcom="ids", context=begun_now(), timeout=300) == [900]


def test_without_a_time_of_the_service_the_clocks_are_taken_to_agree(service, run, soon):
    def without_time(page):
        return {**page, "meta": {"totalRecords": page["meta"]["totalRecords"]}}

    service.fail("GET", "/forms", faults.Rewrite(without_time), every=True)
    soon(service.add_form, polls=3, property_id=2, id=900)
    context = begun_now()

    assert run(property_id=2, xcom="ids", context=context) == [900]
    assert bounds(service) == {format_time(context["dag_run"].run_after)}
