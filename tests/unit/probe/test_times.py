"""How times are to be written, and in which zone the service writes its own."""

from datetime import UTC, datetime, timedelta, timezone

import pytest


def test_ignored_filters_are_reported(serve, probe):
    service = serve()
    service.settings.ignore_filters = True

    probed = probe(service)

    assert probed.code == 1
    assert "with Z and milliseconds, with Z, with an offset" in probed.line("created_since")
    assert "let 5 older forms through" in probed.line("created_since")
    assert "is not honoured" in probed.line("updated_since")


def in_format(pattern):
    def parse_time(text):
        return datetime.strptime(text, pattern).replace(tzinfo=UTC)

    return parse_time


@pytest.mark.parametrize(
    ("parse_time", "named"),
    [
        (in_format("%Y-%m-%dT%H:%M:%SZ"), "a time with Z is honoured ("),
        (in_format("%Y-%m-%dT%H:%M:%S+00:00"), "a time with an offset is honoured ("),
        (in_format("%Y-%m-%d %H:%M:%S"), "a time without a zone is honoured ("),
        (in_format("%Y-%m-%d"), "a time as a date is honoured ("),
        (lambda text: datetime.fromtimestamp(int(text), UTC), "a time in seconds since 1970 is honoured ("),
    ],
)
def test_the_format_that_a_service_takes_instead_is_named(serve, probe, parse_time, named):
    service = serve(interval=timedelta(hours=10))
    service.settings.parse_time = parse_time

    probed = probe(service)

    assert probed.code == 1
    assert named in probed.line("created_since")
    assert "with Z and milliseconds" in probed.line("created_since")
    assert "returned HTTP 409" in probed.line("created_since")
    assert "give createdOnDateTime[gte] in query_params" in probed.line("created_since")


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
    assert "no two forms of the first page differ enough" in probed.unknown["updated_since"]


@pytest.mark.parametrize(("zone", "determined"), [("Asia/Kathmandu", True), ("UTC", False)])
def test_the_zone_of_the_service(serve, probe, zone, determined):
    service = serve()
    service.settings.server_timezone = timezone(timedelta(hours=5, minutes=45))

    before = datetime.now(service.settings.server_timezone)
    probed = probe(service, server_timezone=zone)
    after = datetime.now(service.settings.server_timezone)

    assert probed.extra["server_timezone"] == zone
    assert ("server_timezone" not in probed.unknown) is determined
    if not determined:
        assert any(f"it was {there:%H:}" in probed.unknown["server_timezone"] for there in (before, after))
        assert "set the service's" in probed.unknown["server_timezone"]


def test_a_clock_that_is_wrong_is_no_zone(serve, probe):
    service = serve()
    service.settings.server_timezone = timezone(timedelta(minutes=7))

    assert "clock and this machine's differ by 4" in probe(service).unknown["server_timezone"]
