"""Which forms are new to an asset."""

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
