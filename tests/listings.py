"""What the pages list, made from the code: classes by kind, and errors.

Kinds and modules are those that Airflow knows (:mod:`fsm_provider.provider_info`), so that nothing
is listed in two places.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from fsm_provider import api
from fsm_provider.api import errors
from fsm_provider.assets.forms import completed_forms
from fsm_provider.provider_info import get_provider_info
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import Engineer, FakeFieldService, faults

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


def arguments(thing: Any) -> list[str]:
    """Make a table of the arguments of a class or a function: name, default, and what it is."""
    meanings = meanings_for(thing)
    lines = ["| argument | default | meaning |", "|---|---|---|"]
    for parameter in own_parameters(thing):
        meaning = meanings[parameter.name]
        lines.append(f"| `{parameter.name}` | {default_of(parameter)} | {meaning} |")
    return lines


def own_parameters(thing: Any) -> list[inspect.Parameter]:
    """Give the parameters that a class or a function names itself."""
    parameters: list[inspect.Parameter] = []
    # The signature of an operator is that of Airflow, which wraps the function.
    function = inspect.unwrap(thing.__init__) if inspect.isclass(thing) else thing
    for parameter in inspect.signature(function).parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.name != "self":
            parameters.append(parameter)
    return parameters


def default_of(parameter: inspect.Parameter) -> str:
    """Give the default of a parameter as one would write it."""
    default = parameter.default
    if default is parameter.empty:
        return "required"
    if isinstance(default, timedelta):
        return f"{default.days} days"
    if isinstance(default, str | int | float | tuple) or default is None:
        return f"`{default!r}`".replace("'", '"')
    is_own = type(default).__module__.startswith("fsm_provider")
    return f"`{type(default).__name__}()`" if is_own else "`...`"


def meanings_for(thing: Any) -> dict[str, str]:
    """Give the first sentence of what docstrings say of each parameter; a class has its bases'."""
    meanings: dict[str, str] = {}
    for owner in getattr(thing, "__mro__", (thing,)):
        docstring = inspect.getdoc(owner) or ""
        for name, text in re.findall(
            r"^:param (\w+): ((?:.+\n?)(?:^ +.+\n?)*)", docstring, re.MULTILINE
        ):
            meanings.setdefault(name, first_sentence(" ".join(text.split())))
    return meanings


def first_sentence(text: str) -> str:
    """Give the first sentence of a docstring's text, for a cell of a table."""
    without_notes = re.sub(r" \(templated[^)]*\)", "", text)
    sentence, *_ = re.split(r"\.(?= [A-Z]|$)", without_notes, maxsplit=1)
    return without_roles(sentence).replace("``", "`").replace("|", "\\|")


def fault_classes() -> list[str]:
    """Make a table of the faults: how each is made, and what it does."""
    lines = ["| fault | effect |", "|---|---|"]
    for name in public_faults():
        thing = getattr(faults, name)
        given: list[str] = []
        for parameter in own_parameters(thing):
            default = default_of(parameter).strip("`")
            given.append(parameter.name if default == "required" else f"{parameter.name}={default}")
        effect = first_sentence(summary_for(thing))
        lines.append(f"| `{name}({', '.join(given)})` | {effect} |")
    return lines


def public_faults() -> list[str]:
    """Name the faults that a test plays, but for their base and what plays them."""
    names: list[str] = []
    for name in faults.__all__:
        is_played = inspect.isclass(getattr(faults, name)) and name not in ("Exchange", "Fault")
        if is_played:
            names.append(name)
    return names


LISTINGS = {
    "operators": partial(classes, "operators"),
    "sensors": partial(classes, "sensors"),
    "transfers": partial(classes, "transfers"),
    "hooks": partial(classes, "hooks"),
    "errors": error_classes,
    "sensor-arguments": partial(arguments, FsmFormSensor),
    "asset-arguments": partial(arguments, completed_forms),
    "fake-arguments": partial(arguments, FakeFieldService),
    "engineer-arguments": partial(arguments, Engineer),
    "faults": fault_classes,
}
"""What makes the lines of each list, by the name that a page gives it."""
