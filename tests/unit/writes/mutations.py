"""The rules of :mod:`fsm_provider.writes.ledger` without one of their conditions.

A mutant is made of a rule's syntax tree, so that no test depends on how a rule is spelled.
"""

import ast
import inspect
import textwrap

from fsm_provider.writes import ledger


class Condition:
    """A condition of a rule, and the constants of which one at a time takes its place.

    An operand of ``and`` or ``or`` has the one that drops it. What stands alone, as the test of an
    ``if`` or a comparison in an assignment, has both.
    """

    def __init__(self, rule, number, constants, text):
        self.rule = rule
        self.number = number
        self.constants = constants
        self.text = text

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
        Condition(rule, number, constants, ast.unparse(node))
        for number, (node, constants) in enumerate(nodes_of(tree))
    ]
