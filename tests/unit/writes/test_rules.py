"""The rules of :mod:`fsm_provider.writes.ledger`, in every order of what may happen.

None of their conditions may be missing.
"""

import pytest

from tests.unit.writes.model import SCENARIOS, Model
from tests.unit.writes.mutations import (
    CONDITIONS,
    OTHER_RULES,
    SCENARIO_OF,
    broken_by,
    broken_without,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name):
    assert Model(**SCENARIOS[name]).check()[0] == {}


def test_it_is_known_what_each_condition_is_for():
    assert list(SCENARIO_OF) == list(CONDITIONS)


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIO_OF.items() if scenario])
def test_no_condition_may_be_missing(name):
    """Without it, something goes wrong, or what may happen does not happen any more."""
    assert broken_without(name), f"nothing goes wrong without {CONDITIONS[name].text!r}"


@pytest.mark.parametrize("what", OTHER_RULES)
def test_no_other_rule_may_be_missing(what):
    assert broken_by(*OTHER_RULES[what])
