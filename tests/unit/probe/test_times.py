"""In which zone the service writes its times."""

from datetime import timedelta, timezone

import pytest


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
