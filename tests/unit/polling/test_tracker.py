"""Which forms are new to an asset."""

import pytest

from fsm_provider.polling.polls import FormSelection, FormVersion
from fsm_provider.polling.tracker import FormTracker


def version(updated):
    return FormVersion(
        5001,
        "Gas Safety Record",
        "7",
        "4711",
        created=0.0,
        updated=updated,
    )


def test_an_older_version_of_a_form_is_not_new():
    tracker = FormTracker(FormSelection())
    tracker.begin(0.0)
    tracker.ingest([version(20.0)], now=30.0)
    assert tracker.take_event(10) == [version(20.0)]
    tracker.confirm_event(now=30.0)

    tracker.ingest([version(10.0)], now=40.0)
    assert tracker.take_event(10) == []

    tracker.ingest([version(25.0)], now=50.0)
    assert tracker.take_event(10) == [version(25.0)]


@pytest.mark.parametrize(("updated", "is_forgotten"), [(30.0, True), (20.0, True), (10.0, False)])
def test_a_form_that_was_renamed_is_pending_no_more_unless_that_was_before(updated, is_forgotten):
    tracker = FormTracker(FormSelection(form_names=["Gas Safety Record"]))
    tracker.begin(0.0)
    renamed = version(updated)._replace(name="Draft")
    tracker.ingest([renamed], now=30.0)  # of which nothing is pending
    tracker.ingest([version(20.0)], now=30.0)

    tracker.ingest([renamed], now=40.0)

    assert tracker.take_event(10) == ([] if is_forgotten else [version(20.0)])
