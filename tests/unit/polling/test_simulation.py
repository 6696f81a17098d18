"""Drawn days: no form is lost, none is history, none comes again once recorded.

Without one of the rules, some are.
``FSM_SIMULATED_DAYS=200`` simulates as many more; ``FSM_SEED`` says from which seed on.
"""

import asyncio
import logging
import os
from collections import Counter
from contextlib import aclosing

import pytest

from fsm_provider.polling.tracker import FormTracker
from fsm_provider.polling.watcher import Watcher
from tests.unit.polling.simulation import MODES, VirtualLoop, drawn_day

DAYS = int(os.environ.get("FSM_SIMULATED_DAYS", "0"))
SEED = int(os.environ.get("FSM_SEED", "1"))


@pytest.fixture(autouse=True)
def no_logs():
    """What is said of some thousand failures takes as long as the days."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def day(seed, monkeypatch, mode=None):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(drawn_day(seed, monkeypatch, mode))


@pytest.mark.parametrize("mode", dict.fromkeys(MODES))
def test_a_day_goes_well(monkeypatch, mode):
    wrong, counts = day(SEED, monkeypatch, mode)

    assert wrong == []
    assert counts["expected"] + counts["waits"] > 10


def test_many_days_go_well(monkeypatch):
    wrong = []
    counts = Counter()
    for seed in range(SEED, SEED + DAYS):
        with monkeypatch.context() as patch:
            texts, more = day(seed, patch)
        wrong += texts
        counts += more
    print(dict(sorted(counts.items())))

    assert wrong == []


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


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_a_day_goes_wrong(monkeypatch, rule):
    owner, name, broken, mode, first = BROKEN[rule]
    monkeypatch.setattr(owner, name, broken)

    for seed in range(first, first + 10):
        with monkeypatch.context() as patch:
            wrong, _ = day(seed, patch, mode)
        if any("wait" not in text for text in wrong):
            return
    pytest.fail("nothing went wrong")
