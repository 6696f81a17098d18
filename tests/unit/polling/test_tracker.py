"""Which forms are new to an asset."""

import json

import pytest

from fsm_provider.polling.polls import FormSelection, FormVersion
from fsm_provider.polling.tracker import CHUNKS, DAY, RECENT, WATERMARK, FormTracker


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


def test_many_forms_are_remembered_for_as_long_as_they_may_come_again_and_no_longer():
    """Each day has 400, and all are listed each day. Some days begin with what is stored."""
    tracker = FormTracker(FormSelection())
    tracker.begin(0.0)
    listed = []
    stored = {}
    used = set()
    for day in range(60):
        now = (day + 1) * DAY
        new = [
            version(day * DAY + number)._replace(id=day * 1_000 + number) for number in range(400)
        ]
        listed += new

        tracker.ingest(listed, now)
        assert tracker.take_event(1_000) == new
        tracker.confirm_event(now)
        tracker.record_poll(tracker.watermark, now)
        saved = tracker.prepare_save(now)
        tracker.finish_save()

        stored.update(json.loads(json.dumps(dict(saved))))
        entries = {key: entry for key, entry in stored.items() if key != WATERMARK}
        used.update(key for key, entry in entries.items() if len(entry) > 1)
        assert sum(map(len, entries.values())) < 18 * 400
        assert len(entries.get(RECENT, ())) <= 1_400
        if day % 25 < 5:
            tracker = FormTracker(FormSelection())
            tracker.restore(stored[WATERMARK], entries)
    assert used == {RECENT, *CHUNKS}
