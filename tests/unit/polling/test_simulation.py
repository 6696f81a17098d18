"""Drawn days: no form is lost, none is history, none comes again once recorded.

Without one of the rules, some are.
``FSM_SIMULATED_DAYS=200`` simulates as many more; ``FSM_SEED`` says from which seed on.
"""

import logging
import os
from collections import Counter

import pytest

from tests.unit.polling.broken import BROKEN, day, wrong_without
from tests.unit.polling.simulation import MODES

DAYS = int(os.environ.get("FSM_SIMULATED_DAYS", "0"))
SEED = int(os.environ.get("FSM_SEED", "1"))


@pytest.fixture(autouse=True)
def no_logs():
    """What is said of some thousand failures takes as long as the days."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mode", dict.fromkeys(MODES))
def test_a_day_goes_well(monkeypatch, mode):
    wrong, counts = day(SEED, monkeypatch, mode)

    assert wrong == []
    assert counts["expected"] + counts["waits"] > 10


def test_a_seed_is_a_day(monkeypatch):
    assert day(SEED, monkeypatch, "strict") == day(SEED, monkeypatch, "strict")


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


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_a_day_goes_wrong(rule):
    assert wrong_without(rule)
