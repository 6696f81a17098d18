"""How times are to be written, and in which zone the service writes its own."""

from datetime import datetime, timedelta, timezone

import pytest


def test_ignored_filters_are_reported(serve, probe):
    service = serve()
    service.settings.ignore_filters = True

    probed = probe(service)

    assert probed.code == 1
    assert "let 5 older forms through" in probed.line("created_since")
    assert "is not honoured" in probed.line("updated_since")


def test_a_format_that_is_refused_is_reported(serve, probe):
    service = serve()
    service.settings.parse_time = int

    assert "is not honoured" in probe(service).line("created_since")
    assert "returned HTTP 409" in probe(service).line("created_since")


def hours_off(hours):
    return lambda text: datetime.fromisoformat(text) + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("hours", "says"), [(-1, "older forms through"), (1, "forms that are not older"), (9999, "left out")]
)
def test_a_service_that_reads_times_in_another_zone_is_found_out(serve, probe, hours, says):
    service = serve(interval=timedelta(minutes=20), page_size_param="limit")
    service.settings.parse_time = hours_off(hours)

    assert says in probe(service).line("created_since")


def test_forms_of_one_second_leave_the_time_filters_unknown(serve, probe):
    probed = probe(serve(interval=timedelta(0)))

    assert probed.code == 1
    assert "no two forms of the first page differ" in probed.unknown["updated_since"]


@pytest.mark.parametrize(("zone", "determined"), [("Asia/Kathmandu", True), ("UTC", False)])
def test_the_zone_of_the_service(serve, probe, zone, determined):
    service = serve()
    service.settings.server_timezone = timezone(timedelta(hours=5, minutes=45))

    probed = probe(service, server_timezone=zone)

    assert probed.extra["server_timezone"] == zone
    assert ("server_timezone" not in probed.unknown) is determined
    if not determined:
        assert "clock is +345 minutes from this machine's" in probed.unknown["server_timezone"]
        assert "set the service's" in probed.unknown["server_timezone"]


def test_a_clock_that_is_wrong_is_no_zone(serve, probe):
    service = serve()
    service.settings.server_timezone = timezone(timedelta(minutes=7))

    assert "clock is +7 minutes" in probe(service).unknown["server_timezone"]
