"""The rules of :mod:`fsm_provider.writes.ledger`, in every order of what may happen; none may be missing."""

from dataclasses import replace

import pytest

from fsm_provider.writes import ledger, runner
from fsm_provider.writes.ledger import GUARDS, Row, Write
from tests.unit.writes.model import SCENARIOS, Model

AS_KNOWN = "nobody has claimed or settled it since"
NEEDED = {  # by event and guard: a scenario that goes wrong without it
    "claim": {AS_KNOWN: "told to stop", "it is not done": "token"},
    "record": {AS_KNOWN: "late, forgotten"},
    "record late": {"it is free": "create"},
    "find": {AS_KNOWN: "find, by hand, edited"},
    "settle as made": {AS_KNOWN: "late, forgotten", "it is free or uncertain": "settle, create"},
    "settle as not made": {AS_KNOWN: "settle", "it is uncertain": "settle", "its lease is over": "settle"},
    "forget": {
        AS_KNOWN: "late, forgotten",
        "it is done": "late, forgotten",
        "its lease is over": "sent, forgotten",
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name):
    assert Model(**SCENARIOS[name]).check()[0] == {}


@pytest.mark.parametrize(("event", "guard"), [(event, guard) for event in NEEDED for guard in NEEDED[event]])
def test_no_guard_may_be_missing(monkeypatch, event, guard):
    monkeypatch.setitem(GUARDS, event, tuple(one for one in GUARDS[event] if one != guard))
    assert Model(**SCENARIOS[NEEDED[event][guard]]).check(first=True)[0]


def look_up_at_once(patch):
    patch.setattr(Row, "lease_left", 0.0)


def send_within_the_lease(patch):
    patch.setattr(Row, "lease_left", 0.0)
    patch.setitem(GUARDS, "claim", tuple(one for one in GUARDS["claim"] if one != "it may be sent"))


def forget_what_was_uncertain(patch):
    claim = ledger.claimed
    patch.setattr(ledger, "claimed", lambda *of: lambda *now: replace(claim(*of)(*now), was_uncertain=False))


def say_what_was_put_in(patch):
    patch.setattr(Write, "is_as_sent", True)


def find_what_may_be_that_of_a_rival(patch):
    find = ledger.found
    patch.setattr(ledger, "found", lambda seen, result, rivals: find(seen, result, ()))


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
        (find_what_may_be_that_of_a_rival, "two keys, find"),
        (create_twice, "create"),
        (outlive_the_lease, "settle"),
    ],
)
def test_no_other_rule_may_be_missing(monkeypatch, change, name):
    change(monkeypatch)
    assert Model(**SCENARIOS[name]).check(first=True)[0]
