"""Rules of a watcher, taken out one at a time: some form is lost, is history, or comes again."""

import asyncio
from contextlib import aclosing

import pytest

from fsm_provider.polling.tracker import FormTracker
from fsm_provider.polling.watcher import Watcher
from tests.unit.polling.simulation import VirtualLoop, drawn_day

DAYS_EACH = 10
"""So many days, of which some goes wrong."""


def day(seed, patch, mode=None):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(drawn_day(seed, patch, mode))


def wrong_without(rule):
    """Return what goes wrong on the first day that does without a rule; nothing if none does."""
    owner, name, broken, mode, first = BROKEN[rule]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken)
        for seed in range(first, first + DAYS_EACH):
            with pytest.MonkeyPatch.context() as of_the_day:
                wrong, _ = day(seed, of_the_day, mode)
            of_forms = [text for text in wrong if "wait" not in text]
            if of_forms:
                return of_forms
    return []


_events = Watcher.events
_begin = FormTracker.begin


def latest_time(self, since, started):
    times = [form.updated for form in self.pending.values() if form.updated is not None]
    self.watermark = max([self.watermark, *times])
    self.has_gap = False


def always(self, since, started):
    self.watermark = started
    self.has_gap = False


async def stored_first(self):
    async with aclosing(_events(self)) as events:
        async for forms in events:
            self.tracker.confirm_event(self.feed.time())
            await self._save()
            yield forms


def only_pending(self, identifier):
    forms = [self.pending.get(identifier), self._in_event.get(identifier)]
    return {form.version for form in forms if form is not None}


def any_order(self, forms, now):
    for form in forms:
        is_known = form.version in self._known_versions(form.id)
        if is_known or self._is_history(form) or not self._selection.matches(form):
            continue
        self.pending[form.id] = form


def without_floor(self, floor, stored_keys=()):
    _begin(self, floor, stored_keys)
    if floor is not None:
        self.floor = 0.0


def ignoring_pending(self):
    return self.watermark


BROKEN = {
    "the watermark is the latest time among the records": (
        FormTracker,
        "record_poll",
        latest_time,
        "strict",
        0,
    ),
    "the watermark moves by a poll that leaves a gap": (
        FormTracker,
        "record_poll",
        always,
        "strict",
        0,
    ),
    "the watermark moves before events are stored": (
        FormTracker,
        "_confirmed_watermark",
        ignoring_pending,
        "strict",
        19,
    ),
    "an event is recorded before it is emitted": (
        Watcher,
        "events",
        stored_first,
        "strict",
        0,
    ),
    "nothing is remembered": (FormTracker, "_known_versions", only_pending, "host", 0),
    "versions have no order": (FormTracker, "ingest", any_order, "lag", 3),
    "there is no floor": (FormTracker, "begin", without_floor, "plain", 0),
}
"""Whose method is broken, how, on which kind of day, and the first seed of one on which something
goes wrong.
"""
