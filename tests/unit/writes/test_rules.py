"""The rules of :mod:`fsm_provider.writes.ledger`, in every order of what may happen; none may be
missing.
"""

import inspect

import pytest

from fsm_provider.writes import ledger, runner
from fsm_provider.writes.ledger import LedgerEntry, WriteAttempt
from tests.unit.writes.model import SCENARIOS, Model

NEEDED = {  # a scenario that goes wrong without a condition, by function and condition
    (
        "claimed",
        'row.owner != seen.owner or row.state == "done"',
        'row.state == "done"',
    ): "told to stop",
    (
        "claimed",
        'row.owner != seen.owner or row.state == "done"',
        "row.owner != seen.owner",
    ): "token",
    ("succeeded", "row.owner == claim.owner", "True"): "late, forgotten",
    ("succeeded", 'row.state == "free"', "True"): "create",
    ("came_to_nothing", "row.owner != claim.owner", "False"): "late, forgotten",
    ("response_lost", "row.owner == claim.owner", "True"): "create twice",
    ("found", "row.owner != seen.owner or", ""): "find, by hand, edited",
    ("found", " or rivals", ""): "two keys, find",
    ("settled", "row.owner != seen.owner or", ""): "late, forgotten",
    ("settled", 'is_uncertain or row.state == "free"', "True"): "settle, create",
    (
        "settled",
        " = is_uncertain and row.lease_until < row.read_at",
        " = row.lease_until < row.read_at",
    ): "settle",
    ("settled", " = is_uncertain and row.lease_until < row.read_at", " = is_uncertain"): "settle",
    ("forgotten", "row.owner != seen.owner or", ""): "late, forgotten",
    ("forgotten", 'row.state != "done" or', ""): "late, forgotten",
    ("forgotten", " or row.lease_until >= row.read_at", ""): "sent, forgotten",
}


def change_source(patch, function, condition, without):
    source = inspect.getsource(getattr(ledger, function))
    assert condition in source
    exec(source.replace(condition, without), made := vars(ledger).copy())
    patch.setattr(ledger, function, made[function])


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name):
    assert Model(**SCENARIOS[name]).check()[0] == {}


@pytest.mark.parametrize(("rule", "name"), NEEDED.items(), ids=str)
def test_no_condition_may_be_missing(monkeypatch, rule, name):
    change_source(monkeypatch, *rule)
    assert Model(**SCENARIOS[name]).check(first=True)[0]


def look_up_at_once(patch):
    patch.setattr(LedgerEntry, "lease_left", 0.0)


def send_within_the_lease(patch):
    look_up_at_once(patch)
    change_source(patch, "claimed", "row.lease_until >= row.read_at and not is_recognised", "False")


def forget_what_was_uncertain(patch):
    change_source(patch, "claimed", 'was_uncertain=row.state != "free"', "was_uncertain=False")


def say_what_was_put_in(patch):
    patch.setattr(WriteAttempt, "is_as_sent", True)


def create_twice(patch):
    take = runner.Runner._take_end

    def take_and_allow(by, one, *end):
        take(by, one, *end)
        one.may_resend = one.may_resend or one.is_lost

    patch.setattr(runner.Runner, "_take_end", take_and_allow)


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
