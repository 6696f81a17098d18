"""What a watcher polls for, which forms are new, and what survives a restart."""

import json
from datetime import UTC, datetime, timedelta
from itertools import chain
from random import Random

import pytest

from fsm_provider.api.form_filter import FormFilter, format_time
from fsm_provider.polling.new_forms import NewFormTracker
from fsm_provider.polling.old_polls import MAX_CLOCK_SKEW, PollQuery, PollResult
from fsm_provider.polling.replays import Replay

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def reference(identifier, updated=NOON, name="Gas", property_id=1, job_id=2):
    updated = format_time(updated) if isinstance(updated, datetime) else updated
    return {
        "id": identifier,
        "formName": name,
        "propertyID": property_id,
        "jobID": job_id,
        "createdOnDateTime": format_time(NOON),
        "lastUpdatedOnDateTime": updated,
    }


def new_tracker(start_from="now", **settings):
    return NewFormTracker(
        FormFilter(),
        start_from=start_from,
        look_back=HOUR,
        reconcile_back=7 * DAY,
        reconcile_every=3600.0,
        **settings,
    )


class Watcher:
    """Polls, records and stores as the producer does."""

    def __init__(self, tracker):
        self.tracker = tracker
        self.seconds = 0.0
        self.stored = {}

    def poll(self, *references, started=NOON, max_forms=1000, after=60.0, digests=None, shared_since=None):
        self.seconds += after
        self.query = self.tracker.next_query(self.seconds, started)
        if shared_since:
            self.query = PollQuery(wanted=FormFilter(updated_since=shared_since))
        result = PollResult(references=list(references), started=started, digests=digests or {})
        new = self.tracker.ingest(self.query, result, self.seconds)
        if max_forms:
            self.emit(max_forms)
        return [form["id"] for form in new]

    def emit(self, max_forms=1000):
        event = self.tracker.next_event(max_forms)
        self.tracker.record()
        return [form["id"] for form in event]

    def save(self):
        watermark, changed, gone = self.tracker.to_store()
        self.stored.update(json.loads(json.dumps({**changed, "watermark": watermark})))
        for name in gone:
            self.stored.pop(name, None)
        self.tracker.stored()
        return set(changed), set(gone)

    def restarted(self, from_other_filter=False, **settings):
        tracker = new_tracker(**settings)
        watermark = self.stored["watermark"]
        for name in watermark["pieces"]:
            tracker.restore_emitted(name, self.stored[name])
        tracker.restore(watermark, from_other_filter=from_other_filter)
        other = Watcher(tracker)
        other.stored = self.stored
        return other


def since(watcher):
    return watcher.query.since


def test_from_now_the_first_poll_emits_nothing_and_reads_all_that_a_later_one_can_return():
    watcher = Watcher(new_tracker())

    assert watcher.poll(reference(1), reference(2, NOON - 6 * DAY)) == []
    assert since(watcher) == NOON - HOUR - 7 * DAY - MAX_CLOCK_SKEW
    assert watcher.poll(reference(1), reference(3)) == [3]


def test_from_the_beginning_everything_is_new():
    watcher = Watcher(new_tracker("beginning"))

    assert watcher.poll(reference(1, NOON - 400 * DAY), reference(2)) == [1, 2]
    assert watcher.query.wanted == FormFilter()


def test_from_a_time_no_poll_goes_back_before_it():
    watcher = Watcher(new_tracker((NOON - 3 * DAY).isoformat()))

    assert watcher.poll(reference(1)) == [1]
    assert since(watcher) == NOON - 3 * DAY
    watcher.poll(started=NOON + HOUR, after=3600.0)
    assert since(watcher) == NOON - 3 * DAY


def test_a_poll_goes_back_to_the_start_of_the_last_less_the_look_back():
    watcher = Watcher(new_tracker())
    watcher.poll(started=NOON)
    watcher.poll(started=NOON + timedelta(minutes=1))

    assert since(watcher) == NOON - HOUR


def test_a_reconciliation_goes_back_further_and_finds_what_came_days_late():
    watcher = Watcher(new_tracker())
    watcher.poll(reference(1))

    assert watcher.poll(reference(1), reference(2, NOON - 2 * DAY), after=3600.0) == [2]
    assert since(watcher) == NOON - HOUR - 7 * DAY
    assert watcher.poll(reference(2, NOON - 2 * DAY), after=3600.0) == []


def test_what_the_look_back_returns_again_is_not_new_but_an_update_is():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1))

    assert watcher.poll(reference(1)) == []
    assert watcher.poll(reference(1, NOON + HOUR)) == [1]
    assert watcher.poll(reference(1, NOON + HOUR)) == []


def test_a_form_on_two_pages_is_emitted_once():
    assert Watcher(new_tracker("beginning")).poll(reference(1), reference(2), reference(1)) == [1, 2]


def test_forms_with_other_names_are_not_emitted():
    watcher = Watcher(new_tracker("beginning", form_names=["Gas"]))

    assert watcher.poll(reference(1), reference(2, name="Photo")) == [1]


def test_what_was_not_recorded_stays_pending_and_the_stored_watermark_stays():
    watcher = Watcher(new_tracker())
    watcher.poll(started=NOON)
    watcher.save()
    watcher.poll(reference(1), started=NOON + DAY, max_forms=0)
    watcher.poll(reference(1), started=NOON + 2 * DAY, max_forms=0)
    watcher.save()

    assert since(watcher) == NOON + DAY - HOUR
    assert watcher.stored["watermark"]["moment"] == (NOON - HOUR).isoformat()
    assert watcher.restarted().poll(reference(1), started=NOON + 2 * DAY) == [1]
    assert watcher.emit() == [1]
    watcher.save()
    assert watcher.stored["watermark"] == {
        "moment": (NOON + 2 * DAY - HOUR).isoformat(),
        "pieces": ["seen/2026-01-31T12"],
    }


def test_new_forms_and_the_backlog_are_emitted_in_turn():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(*map(reference, range(100)), max_forms=0)
    assert watcher.emit(10) == [*range(10)]
    emitted = []
    for identifier in range(200, 206):
        watcher.poll(reference(identifier), max_forms=0)
        emitted.append(watcher.emit(10))

    assert emitted[0] == [200, *range(99, 90, -1)]
    assert emitted[1] == [*range(10, 20)]
    assert emitted[2] == [202, 201, *range(90, 82, -1)]
    while watcher.tracker.pending:
        emitted.append(watcher.emit(10))
    assert sorted([*range(10), *chain(*emitted)]) == [*range(100), *range(200, 206)]


def test_neither_the_newest_nor_the_oldest_forms_starve_if_every_event_is_full():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(*map(reference, range(20)), max_forms=0)
    emitted = []
    for number in range(10):
        watcher.poll(*map(reference, range(100 * number + 100, 100 * number + 110)), max_forms=0)
        emitted.append(watcher.emit(5))

    assert [*chain(*emitted[::2])] == [*range(20), 100, 101, 102, 103, 104]
    assert [event[0] for event in emitted[1::2]] == [209, 409, 609, 809, 1009]


def test_a_form_that_came_during_a_restart_does_not_wait_for_the_backlog():
    """The poll after the restart finds both, in the service's order."""
    watcher = Watcher(new_tracker("beginning"))
    backlog = [reference(number, NOON - HOUR) for number in range(50)]
    watcher.poll(*backlog[:25], reference(99, NOON), *backlog[25:], max_forms=0)

    assert watcher.emit(10) == [*range(10)]
    assert watcher.emit(10)[0] == 99


def test_a_newer_version_replaces_the_pending_one():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1), reference(2), max_forms=0)
    newer = reference(1, NOON + HOUR)

    assert watcher.poll(newer, reference(2), max_forms=0) == [1]
    assert watcher.tracker.next_event(10) == [reference(2), newer]


def test_a_newer_version_that_comes_while_the_event_is_on_its_way_stays_pending():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1), max_forms=0)
    assert watcher.tracker.next_event(10) == [reference(1)]
    newer = reference(1, NOON + HOUR)
    watcher.poll(newer, max_forms=0)
    watcher.tracker.record()
    watcher.save()

    assert watcher.tracker.next_event(10) == [newer]
    for each in (watcher, watcher.restarted(start_from="beginning")):
        each.poll(newer, max_forms=0)
        assert each.tracker.next_event(10) == [newer]


def test_what_was_emitted_is_remembered_while_a_backlog_holds_the_watermark_back():
    watcher = Watcher(new_tracker())
    watcher.poll()
    watcher.poll(reference(1), reference(2), max_forms=1)
    for days in range(1, 10):
        watcher.poll(reference(1), reference(2), started=NOON + days * DAY, max_forms=0)
    watcher.save()

    assert watcher.restarted().poll(reference(1), reference(2), started=NOON + 9 * DAY) == [1]


def test_a_form_without_a_time_that_is_emitted_late_is_remembered():
    watcher = Watcher(new_tracker("beginning"))
    for days in range(10):
        undated = [reference(1, None), reference(2, None)]
        watcher.poll(*undated, started=NOON + days * DAY, max_forms=0, digests={1: "a", 2: "b"})
    assert watcher.emit() == [1, 2]

    assert watcher.poll(*undated, started=NOON + days * DAY, digests={1: "a", 2: "b"}) == []


def test_what_changes_while_it_is_stored_is_stored_the_next_time():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1))
    watcher.tracker.to_store()
    watcher.poll(reference(2, NOON - HOUR))
    watcher.tracker.stored()

    assert watcher.save() == ({"seen/2026-01-31T11"}, set())


def test_what_could_not_be_stored_is_stored_the_next_time():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1))
    watcher.tracker.to_store()
    watcher.poll(reference(2, NOON - HOUR))

    assert watcher.save() == ({"seen/2026-01-31T11", "seen/2026-01-31T12"}, set())


def test_a_late_form_that_is_pending_for_another_filter_is_no_history():
    before = Watcher(new_tracker())
    before.poll(reference(1))
    before.poll(reference(2), reference(3, NOON - 2 * DAY), max_forms=0, after=3600.0)
    before.save()

    assert before.restarted(from_other_filter=True).poll(
        reference(2), reference(3, NOON - 2 * DAY), reference(4, NOON - 3 * DAY)
    ) == [2, 3]


def test_a_form_that_comes_late_while_the_first_forms_are_pending_is_new_after_a_restart():
    watcher = Watcher(new_tracker(began=0.0))
    watcher.seconds = 7200.0
    history, new = reference(1, NOON - 3 * HOUR), reference(2)
    watcher.poll(history, new, after=0.0, max_forms=0)
    watcher.save()

    again = watcher.restarted(began=0.0)
    again.seconds = 7200.0
    assert again.poll(history, new, reference(3, NOON - 4 * HOUR)) == [2, 3]


def test_a_restart_continues_at_the_watermark_and_emits_nothing_twice():
    watcher = Watcher(new_tracker())
    watcher.poll(reference(1))
    watcher.poll(reference(2), started=NOON + HOUR)
    watcher.save()

    other = watcher.restarted()

    assert other.poll(reference(1), reference(2), reference(3), started=NOON + 30 * DAY) == [3]
    assert since(other) == NOON - 7 * DAY


def test_an_event_that_was_not_stored_is_emitted_again_after_a_restart():
    watcher = Watcher(new_tracker())
    watcher.poll()
    watcher.save()
    watcher.poll(reference(1))

    assert watcher.restarted().poll(reference(1)) == [1]


def test_a_restart_within_the_first_poll_from_the_beginning_emits_the_rest():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1), reference(2), max_forms=1)
    watcher.save()

    other = watcher.restarted(start_from="beginning")

    assert other.poll(reference(1), reference(2), reference(3)) == [2, 3]
    assert other.query.wanted == FormFilter()


def test_only_the_hours_that_changed_are_stored():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1), reference(2, NOON - HOUR))
    assert watcher.save() == ({"seen/2026-01-31T12", "seen/2026-01-31T11"}, set())
    watcher.poll(reference(3))

    assert watcher.save() == ({"seen/2026-01-31T12"}, set())
    watcher.poll(reference(2, NOON))
    assert watcher.save() == ({"seen/2026-01-31T12"}, {"seen/2026-01-31T11"})
    watcher.poll()
    assert watcher.save() == (set(), set())


def test_what_was_emitted_is_forgotten_once_no_poll_can_return_it():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1))
    watcher.save()

    watcher.poll(started=NOON + 7 * DAY + 2 * HOUR)
    assert watcher.save() == (set(), set())
    watcher.poll(started=NOON + 7 * DAY + 3 * HOUR)

    assert watcher.save() == (set(), {"seen/2026-01-31T12"})
    assert watcher.stored.keys() == {"watermark"}


ODD_TIMES = [
    "yesterday",
    None,
    1769860800,
    {"date": "2026-01-31"},
    NOON + 4000 * DAY,
    "9999-12-31T23:59:59-05:00",
]


@pytest.mark.parametrize("updated", ODD_TIMES)
def test_a_form_with_an_odd_time_is_emitted_once(updated):
    watcher = Watcher(new_tracker("beginning"))

    assert watcher.poll(reference(1, updated)) == [1]
    watcher.save()
    assert watcher.poll(reference(1, updated)) == []
    assert watcher.restarted(start_from="beginning").poll(reference(1, updated)) == []


SAME_TIMES = ["2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000000+01:00"]


@pytest.mark.parametrize("updated", SAME_TIMES)
def test_the_same_time_written_otherwise_is_the_same_version(updated):
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, "2026-01-31T12:00:00.000Z"))
    watcher.save()

    assert watcher.poll(reference(1, updated)) == []
    assert watcher.save() == (set(), set())
    assert watcher.restarted().poll(reference(1, updated)) == []
    assert watcher.poll(reference(1, "2026-01-31T12:00:00+01:00")) == [1]


DIGEST, OTHER_DIGEST = {1: "0" * 16}, {1: "1" * 16}


@pytest.mark.parametrize("updated", ["yesterday", None])
def test_without_a_readable_time_a_form_is_emitted_again_once_its_content_changes(updated):
    watcher = Watcher(new_tracker("beginning"))

    assert watcher.poll(reference(1, updated), reference(1, updated), digests=DIGEST) == [1]
    assert watcher.poll(reference(1, updated), digests=DIGEST) == []
    assert watcher.poll(reference(1, updated), digests=OTHER_DIGEST) == [1]
    watcher.save()
    assert watcher.poll(reference(1, updated), digests=OTHER_DIGEST, after=3600.0) == []
    assert since(watcher) == NOON - HOUR - 7 * DAY
    assert watcher.restarted().poll(reference(1, updated), digests=OTHER_DIGEST) == []
    assert watcher.restarted().poll(reference(1, updated), digests=DIGEST) == [1]


def test_a_form_whose_time_becomes_readable_is_emitted_once_more():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, None), digests=DIGEST)
    watcher.save()
    restarted = watcher.restarted()

    for each in (watcher, restarted):
        assert each.poll(reference(1, NOON)) == [1]
        assert each.poll(reference(1, NOON)) == []


def test_a_version_without_a_readable_time_is_remembered_while_polls_return_it():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, None), digests=DIGEST)

    for day in range(1, 40):
        started = NOON + day * DAY
        assert watcher.poll(reference(1, None), started=started, digests=DIGEST, after=86400.0) == []
        watcher.save()
        watcher = watcher.restarted()

    assert watcher.stored == {
        "watermark": {"moment": (started - HOUR).isoformat(), "pieces": ["seen/2026-03-11T12"]},
        "seen/2026-03-11T12": {"1": DIGEST[1]},
    }
    watcher.poll(started=started + 8 * DAY)
    watcher.save()
    assert watcher.stored.keys() == {"watermark"}


def test_a_time_that_only_its_text_shows_is_remembered_while_polls_return_it():
    """A record whose time is not read counts as one without a time, though Python would read the text."""
    watcher = Watcher(new_tracker("beginning"))
    old = reference(1, "20200131T120000Z")

    assert watcher.poll(old, digests=DIGEST) == [1]
    assert watcher.poll(old, digests=DIGEST) == []


def test_a_version_that_stays_is_stored_once_an_hour():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, None), digests=DIGEST)
    assert watcher.save() == ({"seen/2026-01-31T12"}, set())

    watcher.poll(reference(1, None), started=NOON + HOUR / 2, digests=DIGEST)
    assert watcher.save() == (set(), set())
    watcher.poll(reference(1, None), started=NOON + HOUR, digests=DIGEST)
    assert watcher.save() == ({"seen/2026-01-31T13"}, {"seen/2026-01-31T12"})
    watcher.poll(reference(1, None), started=NOON + 0.999 * HOUR, digests=DIGEST)
    assert watcher.save() == (set(), set())


def test_a_version_that_stays_is_not_forgotten_if_its_new_hour_is_not_stored():
    """Killed after a chunk was stored, and before the watermark that lists it."""
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, None), reference(2), digests=DIGEST)
    watcher.save()
    before = watcher.stored["watermark"]
    watcher.poll(reference(1, None), started=NOON + HOUR, digests=DIGEST)
    watcher.save()
    watcher.stored["watermark"] = before

    assert watcher.restarted().poll(reference(1, None), started=NOON + HOUR, digests=DIGEST) == []


def test_an_old_time_that_replaces_a_version_that_stayed_is_remembered_after_a_restart():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1, None), reference(2), digests=DIGEST)
    watcher.save()
    watcher.poll(reference(1, None), started=NOON + HOUR, digests=DIGEST)
    assert watcher.save() == ({"seen/2026-01-31T13"}, set())
    old = reference(1, NOON - 2 * DAY)
    watcher.poll(old, started=NOON + HOUR)
    assert "seen/2026-01-31T12" in watcher.save()[0]

    assert watcher.restarted().poll(old, started=NOON + HOUR) == []


def test_an_updated_form_is_remembered_for_as_long_as_its_last_update():
    watcher = Watcher(new_tracker("beginning"))
    watcher.poll(reference(1))
    watcher.poll(reference(1, NOON + 5 * DAY), started=NOON + 5 * DAY)
    watcher.poll(started=NOON + 9 * DAY)
    watcher.save()

    assert watcher.poll(reference(1, NOON + 5 * DAY), started=NOON + 9 * DAY) == []
    assert watcher.restarted().poll(reference(1, NOON + 5 * DAY), started=NOON + 9 * DAY) == []


def test_another_filter_begins_at_the_watermark_of_the_one_before_it():
    before = Watcher(new_tracker())
    before.poll(reference(1))
    before.poll(reference(2))
    before.save()

    watcher = before.restarted(from_other_filter=True)
    emitted = watcher.poll(
        reference(2), reference(3, NOON + HOUR), reference(4, NOON - 2 * DAY), reference(5, None)
    )

    assert emitted == [3, 5]
    assert since(watcher) == NOON - HOUR - 7 * DAY


def test_what_was_history_to_another_filter_is_never_emitted_and_what_comes_late_after_it_is():
    before = Watcher(new_tracker())
    before.poll(reference(1))
    before.save()
    watcher = before.restarted(from_other_filter=True)
    watcher.poll(reference(4, NOON - 2 * DAY))
    watcher.save()

    again = watcher.restarted()

    assert again.poll(reference(4, NOON - 2 * DAY), reference(6, NOON - 3 * DAY)) == [6]


def test_a_version_that_two_configurations_emitted_is_remembered_by_its_last():
    watcher = Watcher(new_tracker())
    watcher.tracker.restore({"moment": NOON.isoformat(), "pieces": []})
    later = format_time(NOON + HOUR)
    for name, version in (("seen/2026-01-31T13", later), ("seen/2026-01-31T12", format_time(NOON))):
        watcher.tracker.restore_emitted(name, {"1": version})

    assert watcher.poll(reference(1, NOON + HOUR)) == []


def test_from_now_what_came_while_the_first_poll_was_not_possible_is_new():
    watcher = Watcher(new_tracker(began=0.0))
    watcher.seconds = 7200.0

    late = NOON - timedelta(minutes=30)
    assert watcher.poll(reference(1, NOON - 3 * HOUR), reference(2, late), after=0.0) == [2]
    assert watcher.poll(reference(1, NOON - 3 * HOUR), reference(2, late)) == []


def test_a_shared_listing_gives_each_watcher_only_what_its_own_polls_could_return():
    watcher = Watcher(new_tracker())
    long_ago = reference(9, NOON - 30 * DAY)

    assert watcher.poll(reference(1), long_ago, shared_since=NOON - 40 * DAY) == []
    assert watcher.poll(reference(1), reference(2), long_ago, shared_since=NOON - 40 * DAY) == [2]
    watcher.save()
    assert watcher.restarted().poll(long_ago, reference(2), shared_since=NOON - 40 * DAY) == []


def test_a_shared_listing_that_goes_back_far_enough_is_a_reconciliation():
    watcher = Watcher(new_tracker())
    watcher.poll()
    watcher.poll(shared_since=NOON - 8 * DAY, after=3000.0)
    watcher.poll(after=1000.0)
    assert since(watcher) == NOON - HOUR

    watcher.poll(shared_since=NOON - 2 * DAY, after=2500.0)
    watcher.poll(after=200.0)
    assert since(watcher) == NOON - HOUR - 7 * DAY


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"property_ids": ["1", "2"]}, [1, 2, 3]),
        ({"job_ids": ["21"]}, [1, 3]),
        ({"property_ids": ["1", "3"], "job_ids": ["21", "22"]}, [1, 4]),
        ({"property_ids": ["1", "2"], "form_names": ["Photo"]}, [3]),
    ],
)
def test_each_watcher_picks_its_own_forms(wanted, expected):
    forms = [
        reference(1, property_id=1, job_id=21),
        reference(2, property_id=2, job_id=22),
        reference(3, property_id=2, job_id=21, name="Photo"),
        reference(4, property_id=3, job_id=22),
    ]

    assert Watcher(new_tracker("beginning", **wanted)).poll(*forms) == expected


def test_a_watcher_of_one_property_picks_its_forms_from_a_listing_of_all():
    tracker = NewFormTracker(
        FormFilter(property_id=2, job_id=22),
        start_from="beginning",
        look_back=HOUR,
        reconcile_back=DAY,
        reconcile_every=3600.0,
    )

    assert Watcher(tracker).poll(
        reference(1), reference(2, property_id=2), reference(3, property_id=2, job_id=22)
    ) == [3]


class Service:
    """Forms that change at random; a late one has an old time."""

    def __init__(self, random):
        self.random = random
        self.forms = {}
        self.changes = 0
        self.clock = NOON

    def change(self):
        for _ in range(self.random.choice([0, 1, 3, 30])):
            identifier = self.random.randrange(200)
            is_late = identifier not in self.forms and self.random.random() < 0.3
            self.changes += 1
            updated = self.clock - 2 * DAY * is_late + timedelta(milliseconds=self.changes)
            self.forms[identifier] = reference(identifier, updated)

    def listing(self, since):
        return [form for form in self.forms.values() if since <= datetime.fromisoformat(version(form)[1])]


def version(form):
    return form["id"], form["lastUpdatedOnDateTime"]


@pytest.mark.parametrize("seed", range(40))
def test_whenever_it_is_killed_each_form_is_emitted_and_none_again_once_that_is_stored(seed):
    random = Random(seed)
    service, watcher = Service(random), Watcher(new_tracker())
    watcher.poll()
    watcher.save()
    emitted, recorded, safe = set(), set(), set()

    def poll():
        watcher.seconds += random.choice([60.0, 600.0])
        query = watcher.tracker.next_query(watcher.seconds, service.clock)
        result = PollResult(references=service.listing(query.since), started=service.clock)
        watcher.tracker.ingest(query, result, watcher.seconds)
        service.clock += timedelta(minutes=10)

    def emit(is_stored):
        event = [version(form) for form in watcher.tracker.next_event(max_forms)]
        assert len(event) <= max_forms
        assert not safe.intersection(event)
        if is_busy and random.random() < 0.3:
            service.change()
            poll()
        if is_stored:
            emitted.update(event)
            recorded.update(event)
            watcher.tracker.record()

    def save():
        watcher.save()
        safe.update(recorded)

    max_forms, is_busy = random.choice([1, 7, 20]), True
    for _ in range(150):
        match random.choice(["change", "poll", "emit", "emit", "not stored", "save", "kill"]):
            case "change":
                service.change()
            case "poll":
                poll()
            case "emit":
                emit(is_stored=True)
            case "not stored":
                emit(is_stored=False)
            case "save":
                save()
            case "kill":
                watcher = watcher.restarted()
                recorded.clear()
    watcher, is_busy = watcher.restarted(), False
    recorded.clear()
    poll()
    while watcher.tracker.pending:
        emit(is_stored=True)
        save()

    assert {version(form) for form in service.forms.values()} <= emitted


class TestReplay:
    """What a person asks to be emitted again."""

    @pytest.fixture
    def watcher(self):
        """One that has emitted forms for ten days, and remembers those of seven."""
        watcher = Watcher(new_tracker("beginning"))
        for day in range(10, -1, -1):
            watcher.poll(self.form(day), started=NOON - day * DAY + HOUR, after=86400.0)
        watcher.save()
        return watcher

    def form(self, day):
        return reference(day, NOON - day * DAY)

    def forms(self):
        return [self.form(day) for day in range(10, -1, -1)]

    def replayed(self, watcher, since, until=None):
        again = watcher.restarted()
        again.tracker.replay(Replay("1", "fsm_default", since, until))
        return again

    def test_the_forms_since_then_are_new_and_no_others(self, watcher):
        again = self.replayed(watcher, NOON - 2 * DAY)

        assert again.poll(*self.forms(), reference(11, NOON), started=NOON + 2 * HOUR) == [2, 1, 0, 11]
        assert again.poll(*self.forms(), reference(11, NOON), started=NOON + 3 * HOUR) == []

    def test_the_forms_of_a_period_are_new_and_no_others(self, watcher):
        again = self.replayed(watcher, NOON - 4 * DAY, NOON - 2 * DAY)

        assert again.poll(*self.forms(), reference(11, NOON), started=NOON + 2 * HOUR) == [4, 3, 11]

    @pytest.mark.parametrize(
        ("until", "new"), [(None, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]), (NOON - 8 * DAY, [9])]
    )
    def test_what_is_not_remembered_is_new_in_the_period_and_history_outside(self, watcher, until, new):
        again = self.replayed(watcher, NOON - 9 * DAY, until)

        assert again.poll(*self.forms(), started=NOON + 2 * HOUR, max_forms=0) == new
        assert again.poll(*self.forms(), started=NOON + 3 * HOUR, max_forms=0) == []
        again.save()
        assert again.restarted().poll(*self.forms(), started=NOON + 3 * HOUR) == new

    def test_a_time_within_the_look_back_moves_no_watermark(self, watcher):
        again = self.replayed(watcher, NOON + HOUR / 2)
        late = reference(11, NOON - 7 * DAY + HOUR / 4)

        assert again.poll(*self.forms(), late, started=NOON + 2 * HOUR) == [11]

    def test_what_was_not_emitted_yet_is_not_lost(self, watcher):
        """A phone synced late: it comes with the poll that is the first of the replay."""
        again = self.replayed(watcher, NOON - DAY)

        assert again.poll(*self.forms(), reference(11, NOON - 5 * DAY), started=NOON + HOUR) == [1, 0, 11]

    def test_a_form_without_a_time_is_not_emitted_again(self):
        watcher = Watcher(new_tracker("beginning"))
        unknown = {"digests": {1: "a" * 16}}
        watcher.poll(reference(1, None), **unknown)
        watcher.save()

        again = self.replayed(watcher, NOON - DAY)

        assert again.poll(reference(1, None), reference(2), started=NOON + HOUR, **unknown) == [2]

    def test_before_the_first_poll_there_is_nothing_to_emit_again(self):
        watcher = Watcher(new_tracker())
        watcher.tracker.replay(Replay("1", "fsm_default", NOON - DAY, None))

        assert watcher.poll(reference(1)) == []
