"""What the pages list, made from the code: classes by kind, and errors.

Kinds and modules are those that Airflow knows (:mod:`fsm_provider.provider_info`), so that nothing
is listed in two places.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from fsm_provider import api
from fsm_provider.api import errors
from fsm_provider.provider_info import get_provider_info

MODULES_BESIDE = {
    "assets": ["fsm_provider.assets.forms"],
    "packages": ["fsm_provider.api"],
    "others": ["fsm_provider.retry_policy"],
    "testing": [
        "fsm_provider.testing",
        "fsm_provider.testing.faults",
        "fsm_provider.testing.openapi",
    ],
}
"""Public modules that provider_info does not list, by kind."""


def modules_for(kind: str) -> list[str]:
    """Name the public modules of a kind."""
    entries = get_provider_info().get(kind, [])
    if kind == "extra-links":
        return sorted({dotted.rpartition(".")[0] for dotted in entries})
    modules: list[str] = []
    for entry in entries:
        if "python-modules" in entry:
            modules += entry["python-modules"]
        else:
            modules.append(entry["python-module"])
    return [*sorted(modules), *MODULES_BESIDE.get(kind, ())]


def names_for(module: Any) -> Iterator[tuple[str, Any]]:
    """Give the public classes and functions that a module defines, in its order."""
    for name, thing in vars(module).items():
        is_defined_here = getattr(thing, "__module__", "") == module.__name__
        is_listed = inspect.isclass(thing) or inspect.isfunction(thing)
        if is_defined_here and is_listed and not name.startswith("_"):
            yield name, thing


def summary_for(thing: Any) -> str:
    """Give the first sentence of a docstring."""
    docstring = inspect.getdoc(thing) or ""
    first_paragraph, _, _ = docstring.partition("\n\n")
    return " ".join(first_paragraph.split())


def classes(kind: str) -> list[str]:
    """List the classes of a kind, each with what it is for."""
    lines: list[str] = []
    for dotted in modules_for(kind):
        for name, thing in names_for(import_module(dotted)):
            summary = summary_for(thing)
            if name.startswith("Fsm") and not summary.startswith("Base of"):
                text, _, _ = without_roles(summary).partition(": see")
                lines.append(f"- `{name}`: {text.removesuffix('.')}.")
    return lines


def without_roles(text: str) -> str:
    """Leave the roles out of a docstring's sentence, for Markdown."""
    return text.replace(":class:", "").replace("`~", "`")


def error_classes() -> list[str]:
    """Make a table of the errors, and what each means for the task."""
    lines = ["| error | what it is | Airflow's retries |", "|---|---|---|"]
    for name, thing in names_for(errors):
        if inspect.isclass(thing) and name in api.__all__:
            retries = "not used" if thing.permanent else "used"
            lines.append(f"| `{name}` | {without_roles(summary_for(thing))} | {retries} |")
    return lines


LISTINGS = {
    "operators": partial(classes, "operators"),
    "sensors": partial(classes, "sensors"),
    "transfers": partial(classes, "transfers"),
    "hooks": partial(classes, "hooks"),
    "errors": error_classes,
}
"""What makes the lines of each list, by the name that a page gives it."""
