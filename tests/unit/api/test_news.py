"""What a watcher asks for, which forms are news, and what survives a restart."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.api.forms import FormFilter, format_time
from fsm_provider.api.news import FormNews
from fsm_provider.api.sweeps import Swept

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def reference(identifier, updated=NOON, name="Gas"):
    moment = format_time(updated) if isinstance(updated, datetime) else updated
    return {"id": identifier, "formName": name, "lastUpdatedOnDateTime": moment}


def news(start_from="now", **settings):
    return FormNews(
        FormFilter(),
        start_from=start_from,
        look_back=HOUR,
        reconcile_back=7 * DAY,
        reconcile_every=3600.0,
        **settings,
    )


class Watcher:
    """Sweeps, accepts and stores as the producer does."""

    def __init__(self, following):
        self.news = following
        self.seconds = 0.0
        self.stored = {}

    def sweep(self, *references, started=NOON, accept=True, close=True, after=60.0):
        self.seconds += after
        self.asked = self.news.next_sweep(self.seconds, started)
        swept = Swept(references=list(references), started=started)
        new = self.news.take(self.asked, swept, self.seconds)
        if accept:
            self.news.accept(new)
            if close:
                self.news.close()
        return [form["id"] for form in new]

    def save(self):
        watermark, changed, gone = self.news.to_store()
        self.stored.update(json.loads(json.dumps({**changed, "watermark": watermark})))
        for name in gone:
            self.stored.pop(name, None)
        self.news.stored()
        return set(changed), set(gone)

    def restarted(self, **settings):
        following = news(**settings)
        watermark = self.stored["watermark"]
        following.restore(watermark, {name: self.stored[name] for name in watermark["pieces"]})
        other = Watcher(following)
        other.stored = self.stored
        return other


def since(watcher):
    bound = watcher.asked.filters.get("updated_since")
    return None if bound is None else datetime.fromisoformat(bound)


def test_from_now_the_first_sweep_tells_of_nothing_and_reads_all_that_a_later_one_can_bring():
    watcher = Watcher(news())

    assert watcher.sweep(reference(1), reference(2, NOON - 6 * DAY)) == []
    assert since(watcher) == NOON - HOUR - 7 * DAY - DAY
    assert watcher.sweep(reference(1), reference(3)) == [3]


def test_from_the_beginning_everything_is_news():
    watcher = Watcher(news("beginning"))

    assert watcher.sweep(reference(1, NOON - 400 * DAY), reference(2)) == [1, 2]
    assert watcher.asked.filters == {}


def test_from_a_time_nothing_before_it_is_ever_asked_for():
    watcher = Watcher(news((NOON - 3 * DAY).isoformat()))

    assert watcher.sweep(reference(1)) == [1]
    assert since(watcher) == NOON - 3 * DAY
    watcher.sweep(started=NOON + HOUR, after=3600.0)
    assert watcher.asked.whole
    assert since(watcher) == NOON - 3 * DAY


def test_a_sweep_asks_from_the_start_of_the_last_less_the_look_back():
    watcher = Watcher(news())
    watcher.sweep(started=NOON)
    watcher.sweep(started=NOON + timedelta(minutes=1))

    assert since(watcher) == NOON - HOUR
    assert not watcher.asked.whole


def test_a_reconciliation_goes_back_further_and_finds_what_came_days_late():
    watcher = Watcher(news())
    watcher.sweep(reference(1))

    assert watcher.sweep(reference(1), reference(2, NOON - 2 * DAY), after=3600.0) == [2]
    assert since(watcher) == NOON - HOUR - 7 * DAY
    assert watcher.sweep(reference(2, NOON - 2 * DAY), after=3600.0) == []


def test_what_the_look_back_brings_again_is_no_news_but_an_update_is():
    watcher = Watcher(news("beginning"))
    watcher.sweep(reference(1))

    assert watcher.sweep(reference(1)) == []
    assert watcher.sweep(reference(1, NOON + HOUR)) == [1]
    assert watcher.sweep(reference(1, NOON + HOUR)) == []


def test_a_form_on_two_pages_is_told_of_once():
    assert Watcher(news("beginning")).sweep(reference(1), reference(2), reference(1)) == [1, 2]


def test_other_names_are_no_news():
    watcher = Watcher(news("beginning", form_names=["Gas"]))

    assert watcher.sweep(reference(1), reference(2, name="Photo")) == [1]


def test_what_was_not_accepted_is_told_of_again_and_the_watermark_stays():
    watcher = Watcher(news())
    watcher.sweep(started=NOON)
    watcher.sweep(reference(1), started=NOON + DAY, accept=False)

    assert watcher.sweep(reference(1), started=NOON + DAY) == [1]
    assert since(watcher) == NOON - HOUR


def test_a_restart_goes_on_where_the_watermark_was_and_tells_of_nothing_twice():
    watcher = Watcher(news())
    watcher.sweep(reference(1))
    watcher.sweep(reference(2), started=NOON + HOUR)
    watcher.save()

    other = watcher.restarted()

    assert other.sweep(reference(1), reference(2), reference(3), started=NOON + 30 * DAY) == [3]
    assert other.asked.whole
    assert since(other) == NOON - 7 * DAY


def test_an_event_that_was_not_stored_is_told_of_again_after_a_restart():
    watcher = Watcher(news())
    watcher.sweep()
    watcher.save()
    watcher.sweep(reference(1))

    assert watcher.restarted().sweep(reference(1)) == [1]


def test_a_restart_within_the_first_sweep_from_the_beginning_goes_on_with_the_rest():
    watcher = Watcher(news("beginning"))
    watcher.sweep(reference(1), close=False)
    watcher.save()

    other = watcher.restarted(start_from="beginning")

    assert other.sweep(reference(1), reference(2)) == [2]
    assert other.asked.filters == {}


def test_only_the_hours_that_changed_are_stored():
    watcher = Watcher(news("beginning"))
    watcher.sweep(reference(1), reference(2, NOON - HOUR))
    assert watcher.save() == ({"seen/2026-01-31T12", "seen/2026-01-31T11"}, set())
    watcher.sweep(reference(3))

    assert watcher.save() == ({"seen/2026-01-31T12"}, set())
    watcher.sweep(reference(2, NOON))
    assert watcher.save() == ({"seen/2026-01-31T12", "seen/2026-01-31T11"}, set())
    watcher.sweep()
    assert watcher.save() == (set(), set())


def test_what_was_told_is_forgotten_once_no_sweep_can_bring_it_again():
    watcher = Watcher(news("beginning"))
    watcher.sweep(reference(1))
    watcher.save()

    watcher.sweep(started=NOON + 8 * DAY)
    assert watcher.save() == (set(), set())
    watcher.sweep(started=NOON + 8 * DAY + 3 * HOUR)

    assert watcher.save() == (set(), {"seen/2026-01-31T12"})
    assert watcher.stored.keys() == {"watermark"}


@pytest.mark.parametrize("updated", ["yesterday", None, NOON + 4000 * DAY])
def test_a_form_with_an_odd_time_is_told_of_once(updated):
    watcher = Watcher(news("beginning"))

    assert watcher.sweep(reference(1, updated)) == [1]
    watcher.save()
    assert watcher.sweep(reference(1, updated)) == []
    assert watcher.restarted(start_from="beginning").sweep(reference(1, updated)) == []


def test_an_updated_form_is_remembered_for_as_long_as_its_last_update():
    watcher = Watcher(news("beginning"))
    watcher.sweep(reference(1))
    watcher.sweep(reference(1, NOON + 5 * DAY), started=NOON + 5 * DAY)
    watcher.sweep(started=NOON + 9 * DAY)
    watcher.save()

    assert watcher.sweep(reference(1, NOON + 5 * DAY), started=NOON + 9 * DAY) == []
    assert watcher.restarted().sweep(reference(1, NOON + 5 * DAY), started=NOON + 9 * DAY) == []
