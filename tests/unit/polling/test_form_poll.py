"""What a poll hands on of the records that it reads."""

import pytest

from fsm_provider.api.form_filter import FormFilter
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.polling.form_poll import FormPoll


@pytest.fixture
def poll(service, connect):
    """Poll to the end of the listing."""
    connect(service, max_retries=0)

    def read():
        client, poll = FsmHook().client, FormPoll(FormFilter())
        while (result := poll.read_page(client)) is None:
            pass
        return result

    return read


def record(**fields):
    """Return the fields of a record without a readable time."""
    return {
        "lastUpdatedOnDateTime": None,
        "createdOnDateTime": "2026-01-31T08:00:00Z",
        "jobDetails": {"jobID": 21, "jobTown": "Anytown"},
        "formPDFURL": "/files/1.pdf?signature=1",
        "links": {"job": "/jobs/21?signature=1"},
        "attachments": [{"name": "meter.jpg", "url": "https://files.example.com/1?signature=1"}],
        **fields,
    }


@pytest.fixture
def digest_for(service, poll):
    """Poll for one form with the given record."""
    service.add_form(id=1)

    def polled(given):
        service.update_form(1, **given)
        return poll().digests[1]

    return polled


def test_only_forms_without_a_readable_time_have_a_digest(service, poll):
    service.add_form()
    odd = [service.add_form(lastUpdatedOnDateTime=time)["id"] for time in (None, "yesterday", 1769860800)]

    assert list(poll().digests) == odd


def test_a_form_that_is_first_without_and_then_with_a_readable_time_has_none(service, poll):
    service.add_form(id=7, lastUpdatedOnDateTime=None)
    service.add_form(id=7)

    result = poll()

    assert len(result.references) == 2
    assert result.digests == {}


@pytest.mark.parametrize(
    "change",
    [
        {"formPDFURL": "/files/1.pdf?signature=2"},
        {"formPDFURL": None},
        {"links": {"job": "/jobs/21?signature=2"}},
        {"attachments": [{"name": "meter.jpg", "url": "https://files.example.com/1?signature=2"}]},
        {"createdOnDateTime": "2026-01-31T09:00:00.000+01:00"},
        {"jobDetails": {"jobTown": "Anytown", "jobID": "21"}},
        {"note": None},
    ],
)
def test_what_differs_between_two_listings_of_the_same_content_changes_no_digest(digest_for, change):
    assert digest_for(record()) == digest_for(record(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"formName": "Renamed"},
        {"createdOnDateTime": "2026-01-31T09:00:00Z"},
        {"jobDetails": {"jobID": 22, "jobTown": "Anytown"}},
        {"jobDetails": "none"},
        {"lastUpdatedOnDateTime": "31/01/2026 08:00"},
        {"attachments": []},
        {"note": "unknown to the specification"},
    ],
)
def test_other_content_changes_the_digest(digest_for, change):
    assert digest_for(record()) != digest_for(record(**change))
