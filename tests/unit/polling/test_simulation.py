"""Drawn days: no form is lost, none is history, none comes again once recorded; without a rule some
are.

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
    wrong, counts = [], Counter()
    for seed in range(SEED, SEED + DAYS):
        with monkeypatch.context() as patch:
            texts, more = day(seed, patch)
        wrong, counts = wrong + texts, counts + more
    print(dict(sorted(counts.items())))

    assert wrong == []


_events, _begin = Watcher.events, FormTracker.begin


def latest_time(self, since, started):
    times = [form.updated for form in self.pending.values() if form.updated is not None]
    self.watermark, self.has_gap = max([self.watermark or 0.0, *times]), False


def always(self, since, started):
    self.watermark, self.has_gap = started, False


async def stored_first(self):
    async with aclosing(_events(self)) as events:
        async for forms in events:
            self.tracker.confirm_event(self.feed.time())
            await self._save()
            yield forms


def only_pending(self, identifier):
    held = (self.pending.get(identifier), self._in_event.get(identifier))
    return {form.version for form in held if form is not None}


def any_order(self, forms, now, *, is_own=False):
    for form in forms:
        is_old = form.time is not None and form.time < (self.floor or 0.0)
        if (
            self._selection.matches(form)
            and form.version not in self._known_versions(form.id)
            and not is_old
        ):
            self.pending[form.id] = form


def without_floor(self, floor, stored_keys=()):
    _begin(self, floor, stored_keys)
    self.floor = None if floor is None else 0.0


BROKEN = {
    "the watermark is the latest time among the records": ("record_poll", latest_time, "strict", 0),
    "the watermark moves by a poll that leaves a gap": ("record_poll", always, "strict", 0),
    "the watermark moves before events are stored": (
        "_confirmed_watermark",
        lambda self: self.watermark,
        "strict",
        19,
    ),
    "an event is recorded before it is emitted": ("events", stored_first, "strict", 0),
    "nothing is remembered": ("_known_versions", only_pending, "host", 0),
    "versions have no order": ("ingest", any_order, "lag", 3),
    "there is no floor": ("begin", without_floor, "plain", 0),
}
"""What is broken, how, on which kind of day, and the first seed of one on which something goes
wrong.
"""


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_a_day_goes_wrong(monkeypatch, rule):
    name, broken, mode, first = BROKEN[rule]
    monkeypatch.setattr(Watcher if name == "events" else FormTracker, name, broken)

    for seed in range(first, first + 10):
        with monkeypatch.context() as patch:
            if any("wait" not in text for text in day(seed, patch, mode)[0]):
                return
    pytest.fail("nothing went wrong")
