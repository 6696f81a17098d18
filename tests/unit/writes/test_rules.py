"""The rules of :mod:`fsm_provider.writes.ledger`, in every order of what may happen.

None of their conditions may be missing.
"""

from dataclasses import replace

import pytest

from fsm_provider.writes import ledger, runner
from fsm_provider.writes.attempt import WriteAttempt
from fsm_provider.writes.ledger import LedgerEntry
from tests.unit.writes.model import SCENARIOS, Model
from tests.unit.writes.mutations import conditions_of

NEEDED = {
    "claim": [
        "two attempts",
        "create",
        "impatient",
        "two headers, impatient",
        None,
        "impatient",
        "token",
        "create",
        "two attempts",
        "token",
        "create",
    ],
    "record_success": [None, "create", "late, forgotten", "late, forgotten", "create"],
    "record_refusal": ["late, forgotten", "create", "sent, forgotten"],
    "record_lost_response": ["create twice"],
    "mark_conflict": [None, None],
    "record_lookup": ["find, by hand, edited", None, "two keys, find"],
    "settle": [
        "late, forgotten",
        "late, forgotten",
        "late, forgotten",
        "late, forgotten",
        "late, forgotten",
        "late, forgotten",
        "late, forgotten",
        "settle, create",
    ],
    "forget": ["sent, forgotten", "late, forgotten", "late, forgotten", "sent, forgotten"],
}
"""By rule, for each of its conditions: a scenario in which something goes wrong without it.

Without those of None nothing does:
- ``claim``: an entry with the owner that was seen is never ``sending`` again, once it was not.
- ``record_success``: what is not done has no result that a success could be equal to.
- ``mark_conflict``: the model's service gives two writes one id only if they are one to it.
- ``record_lookup``: a late success, which keeps the owner, is of the job that was looked up.
"""


def all_conditions():
    conditions = []
    for rule in ledger.RULES:
        conditions += conditions_of(rule)
    return conditions


CONDITIONS = {condition.name: condition for condition in all_conditions()}
SCENARIO_OF = {
    f"{rule} {number}": scenario
    for rule, scenarios in NEEDED.items()
    for number, scenario in enumerate(scenarios)
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name):
    assert Model(**SCENARIOS[name]).check()[0] == {}


def test_it_is_known_what_each_condition_is_for():
    assert list(SCENARIO_OF) == list(CONDITIONS)


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIO_OF.items() if scenario])
def test_no_condition_may_be_missing(monkeypatch, name):
    """Without it, something goes wrong, or what may happen does not happen any more."""
    condition = CONDITIONS[name]
    scenario = SCENARIOS[SCENARIO_OF[name]]
    mutants = condition.mutants()
    may_happen = None
    for mutant in mutants:
        with monkeypatch.context() as patch:
            patch.setattr(ledger, condition.rule.__name__, mutant)
            model = Model(**scenario)
            if model.check(first=True)[0]:
                return
        if may_happen is None:
            complete = Model(**scenario)
            complete.check()
            may_happen = complete.happened
        if may_happen - model.happened:
            return
    pytest.fail(f"nothing goes wrong without {condition.text!r}")


def look_up_at_once(patch):
    patch.setattr(LedgerEntry, "lease_left", 0.0)


def send_within_the_lease(patch):
    """Claim what may be under way, as if it was not."""
    look_up_at_once(patch)
    claim = ledger.claim

    def claim_at_once(proposed, seen, lease, entry):
        after = claim(proposed, seen, lease, replace(entry, lease_until=0))
        return entry if after.lease_until == 0 else after

    patch.setattr(ledger, "claim", claim_at_once)


def say_what_was_put_in(patch):
    patch.setattr(WriteAttempt, "matches_intent", True)


def create_twice(patch):
    take = runner.Runner._take_end

    def take_and_allow(by, write, *end):
        take(by, write, *end)
        write.resend_allowed = write.resend_allowed or write.is_lost

    patch.setattr(runner.Runner, "_take_end", take_and_allow)


def outlive_the_lease(patch):
    patch.setattr(Model, "fence", False)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (look_up_at_once, "find, by hand"),
        (send_within_the_lease, "find, create"),
        (say_what_was_put_in, "edited"),
        (create_twice, "create"),
        (outlive_the_lease, "settle"),
    ],
)
def test_no_other_rule_may_be_missing(monkeypatch, change, name):
    change(monkeypatch)
    assert Model(**SCENARIOS[name]).check(first=True)[0]
