"""The rules of :mod:`fsm_provider.writes.ledger`, in every order of what may happen; none may be missing."""

from dataclasses import replace

import pytest

from fsm_provider.writes import ledger, outcomes, runner
from fsm_provider.writes.ledger import GUARDS, Row
from tests.unit.writes.model import SCENARIOS, Model

NEEDED = {  # by event and guard: a scenario that goes wrong without it; the others are implied by these
    "claim": {"is_as_read": "told to stop", "is_not_done": "token"},
    "record": {"is_own": "late, forgotten"},
    "record late": {"is_free": "create"},
    "find": {
        "is_as_read": "find, by hand, edited",
        "has_no_rivals": "two keys, find",
    },
    "settle as made": {"is_as_read": "late, forgotten", "is_at_rest": "settle, create"},
    "settle as not made": {"is_as_read": "settle", "is_uncertain": "settle", "lease_is_over": "settle"},
    "forget": {
        "is_as_read": "late, forgotten",
        "is_done": "late, forgotten",
        "lease_is_over": "sent, forgotten",
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name):
    assert Model(**SCENARIOS[name]).check()[0] == {}


@pytest.mark.parametrize(("event", "guard"), [(event, guard) for event in NEEDED for guard in NEEDED[event]])
def test_no_guard_may_be_missing(monkeypatch, event, guard):
    monkeypatch.setitem(GUARDS, event, tuple(one for one in GUARDS[event] if one.__name__ != guard))
    assert Model(**SCENARIOS[NEEDED[event][guard]]).check(first=True)[0]


def look_up_at_once(patch):
    patch.setattr(Row, "lease_left", 0.0)


def send_within_the_lease(patch):
    patch.setattr(Row, "lease_left", 0.0)
    patch.setitem(GUARDS, "claim", tuple(one for one in GUARDS["claim"] if one.__name__ != "may_be_sent"))


def forget_what_was_uncertain(patch):
    claim = ledger.claimed
    patch.setattr(ledger, "claimed", lambda *of: lambda *now: replace(claim(*of)(*now), was_uncertain=False))


def say_what_was_put_in(patch):
    say = outcomes.what_became
    one_row = lambda one: replace(one.row, digest=one.write.digest)  # noqa: E731
    patch.setattr(outcomes, "what_became", lambda one: say(replace(one, row=one_row(one))))


def create_twice(patch):
    lose = runner.Runner._take_loss
    patch.setattr(
        runner.Runner,
        "_take_loss",
        lambda by, one, *end: (lose(by, one, *end), one.__setattr__("may_create", True)),
    )


def outlive_the_lease(patch):
    patch.setattr(Model, "fence", False)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (look_up_at_once, "find, by hand"),
        (send_within_the_lease, "find, create"),
        (forget_what_was_uncertain, "token"),
        (say_what_was_put_in, "edited"),
        (create_twice, "create"),
        (outlive_the_lease, "settle"),
    ],
)
def test_no_other_rule_may_be_missing(monkeypatch, change, name):
    change(monkeypatch)
    assert Model(**SCENARIOS[name]).check(first=True)[0]
