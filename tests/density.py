"""Whether the code is plain: how much a reader has to hold at once, against limits.

``python -m tests.density`` prints the figures of each tree, and fails if one is above its limit.
Tokens are those of code, without comments and docstrings; the other figures are for 1,000
statements. No blank line, longer name or comment makes a figure worse.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOR_1000_STATEMENTS = {
    "comprehensions": 30.0,
    "ternaries": 25.0,
    "boolean operators": 50.0,
    "packed assignments": 4.0,
    "walrus": 5.0,
}
LIMITS: dict[str, dict[str, float]] = {
    "fsm_provider": {"tokens": 95_000.0, "tokens a line": 8.3, "'one'": 0.0, **FOR_1000_STATEMENTS},
    "example_dags": {"tokens a line": 8.3, "'one'": 0.0, **FOR_1000_STATEMENTS},
    "tests": {"tokens a line": 8.5, "'one'": 0.0},
}
OPERATORS = {
    ast.ListComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
    ast.IfExp: "ternaries",
    ast.BoolOp: "boolean operators",
    ast.NamedExpr: "walrus",
}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def main() -> int:
    is_plain = True
    for tree, limits in LIMITS.items():
        counts: Counter[str] = Counter()
        for path in python_files(ROOT / tree):
            counts += counts_of(path)
        print(f"{tree}: {counts['statements']:,} statements")
        for name, value in figures_from(counts).items():
            limit = limits.get(name)
            if limit is None:
                continue
            is_above = value > limit
            is_plain = is_plain and not is_above
            print(f"  {name:20}{value:10,.1f}  limit {limit:,g}{' ABOVE' if is_above else ''}")
    return 0 if is_plain else 1


def python_files(tree: Path) -> Iterator[Path]:
    """Yield the files of a tree; the fake service is a product of its own."""
    for path in sorted(tree.rglob("*.py")):
        if tree.name != "fsm_provider" or "testing" not in path.relative_to(tree).parts:
            yield path


def counts_of(path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if is_docstring(node):
            docstring_lines.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.stmt):
            counts["statements"] += 1
        if type(node) in OPERATORS:
            counts[OPERATORS[type(node)]] += 1
        if is_packed(node):
            counts["packed assignments"] += 1
        if is_called_one(node):
            counts["'one'"] += 1
    code_lines: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in NO_CODE and token.start[0] not in docstring_lines:
                counts["tokens"] += 1
                code_lines.update(range(token.start[0], token.end[0] + 1))
    counts["code lines"] = len(code_lines)
    return counts


def is_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def is_packed(node: ast.AST) -> bool:
    """Return whether a statement assigns several values at once: ``a, b = x, y``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    return isinstance(node.value, ast.Tuple)


def is_called_one(node: ast.AST) -> bool:
    if isinstance(node, ast.arg):
        return node.arg == "one"
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "one"


def figures_from(counts: Counter[str]) -> dict[str, float]:
    figures = {
        "tokens": float(counts["tokens"]),
        "tokens a line": counts["tokens"] / max(counts["code lines"], 1),
        "'one'": float(counts["'one'"]),
    }
    for name in FOR_1000_STATEMENTS:
        figures[name] = 1000 * counts[name] / max(counts["statements"], 1)
    return figures


if __name__ == "__main__":
    sys.exit(main())
