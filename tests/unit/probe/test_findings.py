"""Which parameters carry the cursor and the page size, and in which zone the service writes its
times.
"""

from datetime import timedelta, timezone

import pytest

from fsm_provider.commands.probe import CURSOR_PARAMS, MAX_REQUESTS, PAGE_SIZE_PARAMS
from fsm_provider.testing import faults


@pytest.mark.parametrize("name", CURSOR_PARAMS[1::3])
def test_a_cursor_parameter_is_found(serve, probe, name):
    assert probe(serve(cursor_param=name)).extra["cursor_param"] == name


@pytest.mark.parametrize("name", PAGE_SIZE_PARAMS[::3])
def test_a_page_size_parameter_is_found(serve, probe, name):
    assert probe(serve(page_size_param=name)).extra["page_size_param"] == name


def test_names_of_the_connection_are_tried_first(serve, probe):
    service = serve(cursor_param="weiter", page_size_param="anzahl")

    probed = probe(service, cursor_param="weiter", page_size_param="anzahl")

    assert probed.code == 0
    assert (probed.extra["cursor_param"], probed.extra["page_size_param"]) == ("weiter", "anzahl")


def test_a_listing_of_one_page_is_made_to_have_two(serve, probe):
    probed = probe(serve(forms=2, page_size_param="limit", cursor_param="after"))

    assert probed.code == 0
    assert probed.extra["cursor_param"] == "after"


def test_a_service_without_records_leaves_most_unknown(serve, probe):
    probed = probe(serve(forms=0))

    assert probed.code == 1
    assert probed.extra == {"page_size_param": None, "cursor_param": None, "server_timezone": "UTC"}
    assert probed.unknown["page_size_param"] == "there are no two forms."
    assert probed.unknown["cursor_param"] == "the forms have no second page."
    assert len(probed.requests) == 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_cursor_that_is_ignored_is_not_found(serve, probe, newest_first):
    service = serve()
    service.settings.ignore_cursor = True
    if newest_first:  # then the same page is not quite the same: a form has come meanwhile
        service.fail("GET", "/forms", NewForm(), every=True)

    probed = probe(service)

    assert "cursor_param" not in {name for name, value in probed.extra.items() if value}
    assert "cursor, nextCursor" in probed.unknown["cursor_param"]
    assert "page_token" in probed.unknown["cursor_param"]


class NewForm:
    """A form is added before each response, and the listing has the newest first."""

    calls = 0

    async def play(self, exchange):
        NewForm.calls += 1

        def with_one_more(page):
            new = {**page["data"][0], "id": 9000 + NewForm.calls}
            return {**page, "data": [new, *page["data"][:-1]]}

        await faults.Rewrite(with_one_more).play(exchange)


class Strict:
    """A service that refuses parameters that it does not know."""

    async def play(self, exchange):
        known = {"after", "limit", "createdOnDateTime[gte]", "lastUpdatedOnDateTime[gte]"}
        unknown = exchange.request.query_params.keys() - known
        await (faults.Status(400) if unknown else faults.CorrectResponse()).play(exchange)


def test_a_service_that_refuses_unknown_parameters_is_probed(serve, probe):
    service = serve(cursor_param="after", page_size_param="limit")
    service.fail("*", "*", Strict(), every=True)

    probed = probe(service)

    assert probed.code == 0
    assert (probed.extra["cursor_param"], probed.extra["page_size_param"]) == ("after", "limit")


class AtMost:
    """A service with a largest page, that refuses larger ones or gives the largest or the usual
    instead.
    """

    def __init__(self, max_size, otherwise, name="limit"):
        self.max_size, self.otherwise, self.name = max_size, otherwise, name

    async def play(self, exchange):
        if int(exchange.request.query_params.get(self.name, 1)) <= self.max_size:
            await faults.CorrectResponse().play(exchange)
        elif self.otherwise is None:
            await faults.Status(400).play(exchange)
        else:

            def cut(page):
                fields = {"hasMore": "true", "nextCursor": "more"}
                return {**page, "data": page["data"][: self.otherwise], "pagination": fields}

            await faults.Rewrite(cut).play(exchange)


@pytest.mark.parametrize(("otherwise", "size"), [(None, 200), (250, 250), (10, 200)])
def test_the_largest_page_is_found(serve, probe, otherwise, size):
    service = serve(forms=600, page_size_param="limit")
    service.fail("GET", "/forms", AtMost(250, otherwise), every=True)

    assert probe(service).extra["page_size"] == size


def test_the_request_limit_is_not_exceeded(serve, probe):
    service = serve(forms=5, cursor_param="unheard_of", page_size_param="count")
    service.fail("GET", "/forms", AtMost(99, None, "count"), every=True)

    probed = probe(service, cursor_param="a", page_size_param="b")

    assert probed.code == 1
    assert len(probed.requests) <= MAX_REQUESTS


@pytest.mark.parametrize(
    ("zone", "minutes", "says"),
    [
        ("Asia/Kathmandu", 345, []),
        ("UTC", 345, ["clock is +345 minutes from this machine's", "set the service's"]),
        ("UTC", 7, ["clock is +7 minutes"]),
    ],
)
def test_the_zone_of_the_service_unless_its_clock_is_wrong(serve, probe, zone, minutes, says):
    service = serve()
    service.settings.server_timezone = timezone(timedelta(minutes=minutes))

    probed = probe(service, server_timezone=zone)

    assert probed.extra["server_timezone"] == zone
    assert ("server_timezone" in probed.unknown) is bool(says)
    assert [text for text in says if text not in probed.unknown["server_timezone"]] == []
