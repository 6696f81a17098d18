"""What the pages list, made from the code: modules by kind, settings, errors, examples.

Kinds and modules are those that Airflow is told of (:mod:`fsm_provider.provider_info`), so that nothing is
listed in two places.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fsm_provider import api, testing
from fsm_provider.api import errors
from fsm_provider.provider_info import get_provider_info

EXAMPLES = Path(__file__).parents[2] / "example_dags"
MODULES_BESIDE = {
    "operators": ["fsm_provider.operators.base", "fsm_provider.bulk"],
    "transfers": ["fsm_provider.transfers.base", "fsm_provider.manifest"],
    "assets": ["fsm_provider.assets.forms"],
    "filters": ["fsm_provider.api.forms"],
    "others": ["fsm_provider.retry_policy", "fsm_provider.watermark", "fsm_provider.reports.page"],
}
"""Modules that provider_info does not list, or that hold only base classes, by kind."""
PACKAGES = {"api": api, "testing": testing}
"""Packages whose names are those of their ``__all__``."""


def modules_of(kind: str) -> list[str]:
    """Name the modules of a kind that Airflow is told of."""
    entries = get_provider_info().get(kind, [])
    if kind == "extra-links":
        return sorted({dotted.rpartition(".")[0] for dotted in entries})
    modules = [
        module for entry in entries for module in entry.get("python-modules", [entry.get("python-module")])
    ]
    return sorted(modules)


def names_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Give the public classes and functions that a module defines, in its order."""
    for name, thing in vars(module).items():
        is_ours = getattr(thing, "__module__", "") == module.__name__
        if is_ours and not name.startswith("_") and (inspect.isclass(thing) or inspect.isfunction(thing)):
            yield name, thing


def summary_of(thing: Any) -> str:
    """Give the first sentence of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def classes(kind: str) -> Iterator[str]:
    """List the classes of a kind, each with what it is for."""
    for dotted in modules_of(kind):
        for name, thing in names_of(import_module(dotted)):
            if name.startswith("Fsm") and not summary_of(thing).startswith("Base of"):
                summary = plain(summary_of(thing)).partition(": see")[0].removesuffix(".")
                yield f"* {{py:class}}`~{dotted}.{name}`: {summary}."


def plain(text: str) -> str:
    """Leave the roles out of a docstring's sentence, for Markdown."""
    return text.replace(":class:", "").replace("`~", "`")


def settings() -> Iterator[str]:
    """List the settings of the connection that its form shows."""
    yield from ("| setting | in the form | default | |", "|---|---|---|---|")
    (connection_type,) = get_provider_info()["connection-types"]
    for name, field in connection_type["conn-fields"].items():
        default = json.dumps(field["schema"].get("default")).strip('"')
        shown = "unset" if default == "null" else f"`{default}`"
        yield f"| `{name}` | {field['label']} | {shown} | {field['description']} |"


def error_classes() -> Iterator[str]:
    """List the errors, and what each means for the task."""
    yield from ("| error | what it is | Airflow's retries |", "|---|---|---|")
    for name, thing in names_of(errors):
        if inspect.isclass(thing) and name in api.__all__:
            retries = "not used" if thing.permanent else "used"
            yield f"| {{py:class}}`~fsm_provider.api.{name}` | {plain(summary_of(thing))} | {retries} |"


def examples() -> Iterator[str]:
    """Show each example: what it says of itself, and its code."""
    for path in sorted(EXAMPLES.glob("*.py")):
        module = ast.parse(path.read_text())
        code_begins = module.body[1].lineno
        yield from (f"## {path.stem}", "", ast.get_docstring(module) or "", "")
        yield from (f"<details><summary><code>example_dags/{path.name}</code></summary>", "")
        yield from (
            f"```{{literalinclude}} /../example_dags/{path.name}",
            ":language: python",
            f":lines: {code_begins}-",
            "```",
        )
        yield from ("", "</details>", "")


def reference(kind: str) -> Iterator[str]:
    """Document every module of a kind, or every name of a package, in reStructuredText."""
    if package := PACKAGES.get(kind):
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.ismodule(thing):
                yield from heading(thing.__name__)
                yield from (f".. automodule:: {thing.__name__}", "   :members:", "")
            else:
                yield from documented(package.__name__, name, thing)
        return
    for dotted in [*modules_of(kind), *MODULES_BESIDE.get(kind, ())]:
        yield from heading(dotted)
        yield from (f".. automodule:: {dotted}", "   :members:", "   :show-inheritance:", "")


def heading(dotted: str) -> tuple[str, ...]:
    """Begin a section."""
    return (dotted, "~" * len(dotted), "")


def documented(module: str, name: str, thing: type) -> Iterator[str]:
    """Document one class; of a record its fields instead of a long signature."""
    yield f".. autoclass:: {module}.{name}"
    if not issubclass(thing, BaseModel):
        # Of the errors each has what their base has; the fake's methods are those of its bases.
        inherited = "   :show-inheritance:" if issubclass(thing, Exception) else "   :inherited-members:"
        yield from ("   :members:", inherited, "")
        return
    fields = [
        f"``{attribute}``" + (f" (``{field.alias}``)" if field.alias not in (None, attribute) else "")
        for attribute, field in thing.model_fields.items()
    ]
    yield from ("   :no-members:", "", f"   Fields: {', '.join(fields)}.", "")


def directive(make: Callable[..., Iterable[str]]) -> type[SphinxDirective]:
    """Make a directive of what gives the lines of its content."""

    class Listing(SphinxDirective):
        optional_arguments = 1

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes("\n".join(make(*self.arguments)), allow_section_headings=True)

    return Listing


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for name, make in {
        "fsm-classes": classes,
        "fsm-settings": settings,
        "fsm-errors": error_classes,
        "fsm-examples": examples,
        "fsm-reference": reference,
    }.items():
        app.add_directive(name, directive(make))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
