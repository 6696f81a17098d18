"""Which parameters carry cursor and page size, and in which zone the service writes times."""

from datetime import timedelta, timezone

import pytest

from fsm_provider.commands.probe import CURSOR_PARAMS, MAX_REQUESTS, PAGE_SIZE_PARAMS
from fsm_provider.testing import faults
from tests.unit.no_forms import ANSWERS, SETTING, NoForms


@pytest.mark.parametrize("name", CURSOR_PARAMS[1::3])
def test_a_cursor_parameter_is_found(serve, probe, name):
    probed = probe(serve(cursor_param=name))

    assert probed.extra["cursor_param"] == name


@pytest.mark.parametrize("name", PAGE_SIZE_PARAMS[::3])
def test_a_page_size_parameter_is_found(serve, probe, name):
    probed = probe(serve(page_size_param=name))

    assert probed.extra["page_size_param"] == name


def test_names_of_the_connection_are_tried_first(serve, probe):
    service = serve(cursor_param="weiter", page_size_param="anzahl")

    probed = probe(service, cursor_param="weiter", page_size_param="anzahl")

    assert probed.code == 0
    assert probed.extra["cursor_param"] == "weiter"
    assert probed.extra["page_size_param"] == "anzahl"


def test_a_listing_of_one_page_is_made_to_have_two(serve, probe):
    service = serve(forms=2, page_size_param="limit", cursor_param="after")

    probed = probe(service)

    assert probed.code == 0
    assert probed.extra["cursor_param"] == "after"


def test_a_service_without_records_leaves_most_unknown(serve, probe):
    probed = probe(serve(forms=0))

    assert probed.code == 1
    assert probed.extra == {
        "page_size_param": None,
        "cursor_param": None,
        "server_timezone": "UTC",
    }
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

    assert not probed.extra.get("cursor_param")
    assert "cursor, nextCursor" in probed.unknown["cursor_param"]
    assert "page_token" in probed.unknown["cursor_param"]


class NewForm:
    """A form is added before each response, and the listing has the newest first."""

    calls = 0

    async def play(self, exchange):
        NewForm.calls += 1

        def add_form(page):
            newest, *_ = page["data"]
            form = {**newest, "id": 9000 + NewForm.calls}
            return {**page, "data": [form, *page["data"][:-1]]}

        await faults.Rewrite(add_form).play(exchange)


class Strict:
    """A service that refuses parameters that it does not know."""

    async def play(self, exchange):
        known = {"after", "limit", "createdOnDateTime[gte]", "lastUpdatedOnDateTime[gte]"}
        unknown = exchange.request.query_params.keys() - known
        fault = faults.CorrectResponse()
        if unknown:
            fault = faults.Status(400)
        await fault.play(exchange)


def test_a_service_that_refuses_unknown_parameters_is_probed(serve, probe):
    service = serve(cursor_param="after", page_size_param="limit")
    service.fail("*", "*", Strict(), every=True)

    probed = probe(service)

    assert probed.code == 0
    assert probed.extra["cursor_param"] == "after"
    assert probed.extra["page_size_param"] == "limit"


class AtMost:
    """A service with a largest page.

    :param otherwise: the size of the page where a larger one is asked for; None: it is refused.
    """

    def __init__(self, max_size, otherwise, name="limit"):
        self.max_size = max_size
        self.otherwise = otherwise
        self.name = name

    async def play(self, exchange):
        size = int(exchange.request.query_params.get(self.name, 1))
        fault = faults.Rewrite(self.shorten)
        if size <= self.max_size:
            fault = faults.CorrectResponse()
        elif self.otherwise is None:
            fault = faults.Status(400)
        await fault.play(exchange)

    def shorten(self, page):
        pagination = {"hasMore": "true", "nextCursor": "more"}
        return {**page, "data": page["data"][: self.otherwise], "pagination": pagination}


@pytest.mark.parametrize(
    ("otherwise", "size"),
    [
        (None, 200),
        (250, 250),
        (10, 200),
    ],
)
def test_the_largest_page_is_found(serve, probe, otherwise, size):
    service = serve(forms=600, page_size_param="limit")
    service.fail("GET", "/forms", AtMost(250, otherwise), every=True)

    probed = probe(service)

    assert probed.extra["page_size"] == size


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
    for text in says:
        assert text in probed.unknown["server_timezone"]


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_the_service_returns_where_there_are_no_forms_is_found(serve, probe, answer):
    service = serve(page_size_param="limit")
    service.fail("GET", "/forms", NoForms(ANSWERS[answer]), every=True)

    probed = probe(service)

    assert probed.code == 0
    assert probed.extra["no_forms_response"] == SETTING[answer]
    evidence = "so it was when a job was asked for forms of the future"
    assert evidence in probed.line("no_forms_response")


def test_a_listing_without_records_needs_no_setting(serve, probe):
    probed = probe(serve(page_size_param="limit"))

    assert probed.code == 0
    assert "no_forms_response" not in probed.extra
