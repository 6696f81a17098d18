"""The rules of :mod:`fsm_provider.writes.ledger` without one of their conditions.

A mutant is made of a rule's syntax tree, so that no test depends on how a rule is spelled.
"""

import ast
import inspect
import textwrap
from collections import namedtuple
from dataclasses import replace

import pytest

from fsm_provider.writes import ledger, runner
from fsm_provider.writes.attempt import WriteAttempt
from fsm_provider.writes.ledger import LedgerEntry
from tests.unit.writes.model import SCENARIOS, Model


class Condition:
    """A condition of a rule, and the constants of which one at a time takes its place.

    An operand of ``and`` or ``or`` has the one that drops it. What stands alone, as the test of an
    ``if`` or a comparison in an assignment, has both.
    """

    def __init__(self, rule, number, constants, node):
        self.rule = rule
        self.number = number
        self.constants = constants
        self.text = ast.unparse(node)
        self.line = rule.__code__.co_firstlineno + node.lineno - 1

    @property
    def name(self):
        return f"{self.rule.__name__} {self.number}"

    def mutants(self):
        """Return the rule with each of the constants in place of the condition."""
        return [self._with(constant) for constant in self.constants]

    def _with(self, constant):
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.rule)))
        node, _ = list(nodes_of(tree))[self.number]
        changed = Replacer(node, ast.Constant(constant)).visit(tree)
        namespace = vars(ledger).copy()
        exec(compile(ast.fix_missing_locations(changed), "<mutant>", "exec"), namespace)
        return namespace[self.rule.__name__]


class Replacer(ast.NodeTransformer):
    def __init__(self, node, replacement):
        self.node = node
        self.replacement = replacement

    def visit(self, node):
        if node is self.node:
            return self.replacement
        return super().visit(node)


def nodes_of(tree):
    """Yield each condition in a tree, with the constants that may take its place.

    An ``or`` in an argument or a text, as in ``note or ""``, is no condition.
    """
    alone = (True, False)
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            yield from operands_of(node.test, alone)
        elif isinstance(node, ast.Assign | ast.keyword) and is_condition(node.value):
            yield from operands_of(node.value, alone)


def is_condition(node):
    if isinstance(node, ast.BoolOp):
        return not is_default(node)
    return isinstance(node, ast.Compare)


def is_default(node):
    """Return whether an ``or`` gives a value of which none of its operands is a condition."""
    conditions = ast.Compare | ast.UnaryOp | ast.Name
    return not any(isinstance(operand, conditions) for operand in node.values)


def operands_of(node, constants):
    """Yield the operands of ``and`` and ``or`` in a condition; else the condition itself."""
    if not isinstance(node, ast.BoolOp):
        yield node, constants
        return
    neutral = isinstance(node.op, ast.And)
    for operand in node.values:
        yield from operands_of(operand, (neutral,))


def conditions_of(rule):
    """Return the conditions of a rule, in the order of a walk through its tree."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    return [
        Condition(rule, number, constants, node)
        for number, (node, constants) in enumerate(nodes_of(tree))
    ]


NEEDED = {
    "claim": [
        "two attempts",
        "create",
        "impatient",
        "two headers, impatient",
        None,
        "token",
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
- ``claim``: the model's keys are never too old (test_recording.py has one that is); an entry with
  the owner that was seen is never ``sending`` again, once it was not.
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


# What goes wrong without a condition: in words, and the steps that lead there.
Broken = namedtuple("Broken", "what steps")


def broken_without(name):
    """Return what breaks without a condition; None if nothing does.

    Something goes wrong, or else what may happen does not happen any more.
    """
    condition = CONDITIONS[name]
    scenario = SCENARIOS[SCENARIO_OF[name]]
    happened = []
    for mutant in condition.mutants():
        model = Model(**scenario)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger, condition.rule.__name__, mutant)
            wrong, _ = model.check(first=True)
        for what in sorted(wrong):
            return Broken(what, wrong[what])
        happened.append(model.happened)
    complete = Model(**scenario)
    complete.check()
    for labels in happened:
        missing = sorted(complete.happened - labels)
        if missing:
            return Broken(f"NEVER: {missing[0]}", missing)
    return None


def broken_by(change, name):
    """Return what goes wrong in a scenario after another change; None if nothing does."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        wrong, _ = Model(**SCENARIOS[name]).check(first=True)
    for what in sorted(wrong):
        return Broken(what, wrong[what])
    return None


def look_up_at_once(patch):
    patch.setattr(LedgerEntry, "lease_left", 0.0)


def send_within_the_lease(patch):
    """Claim what may be under way, as if it was not."""
    look_up_at_once(patch)
    claim = ledger.claim

    def claim_at_once(proposed, seen, lease, key_lifetime, entry):
        after = claim(proposed, seen, lease, key_lifetime, replace(entry, lease_until=0))
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


OTHER_RULES = {
    "what may be under way is looked up": (look_up_at_once, "find, by hand"),
    "a lease is not awaited": (send_within_the_lease, "find, create"),
    "the content is not compared": (say_what_was_put_in, "edited"),
    "a lost response is sent again": (create_twice, "create"),
    "a request outlives its lease": (outlive_the_lease, "settle"),
}
"""By what is broken: how, and a scenario in which something goes wrong then."""
