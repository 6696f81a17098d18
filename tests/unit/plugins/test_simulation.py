"""Drawn days of deliveries: what a sender believes accepted is one event, and nothing else is.

Without one of the rules, it is not.
"""

import pytest

from tests.capabilities import ASSETS
from tests.unit.plugins.simulation import BROKEN, FAILURES, drawn_day

pytestmark = [ASSETS.needed, pytest.mark.usefixtures("database")]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_accepted_is_one_event(seed):
    wrong, counts = drawn_day(seed)

    assert wrong == []
    assert counts["failures"] > len(FAILURES)
    assert counts["requests"] > counts["events"] > 20


def test_a_seed_is_a_day():
    assert drawn_day(7) == drawn_day(7)


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_a_day_goes_wrong(monkeypatch, rule):
    BROKEN[rule](monkeypatch)

    wrong, _ = drawn_day(1)

    assert wrong != []
