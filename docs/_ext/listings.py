"""What the pages list, made from the code: modules by kind, settings, errors, examples, the API
reference.

Kinds and modules are those that Airflow knows (:mod:`fsm_provider.provider_info`), so that nothing
is listed in two places. The reference is a page per public module, written into ``docs/reference``
when a build begins.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ForwardRef, is_typeddict

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fsm_provider import api
from fsm_provider.api import errors
from fsm_provider.provider_info import get_provider_info

SUMMARY = metadata("airflow-provider-fsm")["Summary"]
DOCS = Path(__file__).parents[1]
EXAMPLES = DOCS.parent / "example_dags"
REFERENCE = DOCS / "reference"
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
EXPORTED_BY = {
    "fsm_provider.operators.jobs": ("JobOutcome",),
}
"""What users import from a module that is defined in another one."""
FOR_AIRFLOW = ("question_from", "sanitize_uri", "settings_from")
"""Functions that this package, or Airflow, calls, and nobody else."""
PLAIN_TYPES = {
    r"\bTimestamp\b": "datetime",
    r"\bInteger\b": "int",
    r"\b(TextID|Amount|StrictStr)\b": "str",
    r"\bStrictBool\b": "bool",
    r"Annotated\[(\w+), .*?\](?= \||$)": r"\1",
}
"""Names that the records give their types, and what a reader knows them by."""


def modules_for(kind: str) -> list[str]:
    """Name the public modules of a kind."""
    entries = get_provider_info().get(kind, [])
    if kind == "extra-links":
        return sorted({dotted.rpartition(".")[0] for dotted in entries})
    modules = [
        module
        for entry in entries
        for module in entry.get("python-modules", [entry.get("python-module")])
    ]
    return [*sorted(modules), *MODULES_BESIDE.get(kind, ())]


def names_for(module: Any) -> Iterator[tuple[str, Any]]:
    """Give the public classes and functions that a module defines, in its order."""
    for name, thing in vars(module).items():
        is_ours = getattr(thing, "__module__", "") == module.__name__
        if (
            is_ours
            and not name.startswith("_")
            and (inspect.isclass(thing) or inspect.isfunction(thing))
        ):
            yield name, thing


def summary_for(thing: Any) -> str:
    """Give the first sentence of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def classes(kind: str) -> Iterator[str]:
    """List the classes of a kind, each with what it is for."""
    for dotted in modules_for(kind):
        for name, thing in names_for(import_module(dotted)):
            if name.startswith("Fsm") and not summary_for(thing).startswith("Base of"):
                summary = plain(summary_for(thing)).partition(": see")[0].removesuffix(".")
                yield f"* {{py:class}}`~{dotted}.{name}`: {summary}."


def plain(text: str) -> str:
    """Leave the roles out of a docstring's sentence, for Markdown."""
    return text.replace(":class:", "").replace("`~", "`")


def error_classes() -> Iterator[str]:
    """List the errors, and what each means for the task."""
    yield from ("| error | what it is | Airflow's retries |", "|---|---|---|")
    for name, thing in names_for(errors):
        if inspect.isclass(thing) and name in api.__all__:
            retries = "not used" if thing.permanent else "used"
            yield f"| {{py:class}}`~fsm_provider.api.{name}` | {plain(summary_for(thing))} | {retries} |"


def examples() -> Iterator[str]:
    """Show each example, in the order of the page's table: what it says of itself, and its code."""
    page = (DOCS / "examples.md").read_text()
    for name in re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE):
        path = EXAMPLES / f"{name}.py"
        module = ast.parse(path.read_text())
        code_begins = module.body[1].lineno
        yield from (f"### {path.stem}", "", ast.get_docstring(module) or "", "")
        yield from (f"<details><summary><code>example_dags/{path.name}</code></summary>", "")
        yield from (
            f"```{{literalinclude}} /../example_dags/{path.name}",
            ":language: python",
            f":lines: {code_begins}-",
            "```",
        )
        yield from ("", "</details>", "")


def reference(kind: str) -> Iterator[str]:
    """List the pages of a kind's modules."""
    yield from (".. toctree::", "")
    yield from (f"   reference/{dotted}" for dotted in modules_for(kind))
    yield ""


KINDS = (
    "operators",
    "sensors",
    "transfers",
    "assets",
    "hooks",
    "packages",
    "triggers",
    "extra-links",
)


def write_reference(_: Sphinx) -> None:
    """Write a page for each public module; a page that is as it should be is left alone."""
    REFERENCE.mkdir(exist_ok=True)
    pages = {
        f"{dotted}.rst": "\n".join(page_for(dotted)) + "\n"
        for kind in (*KINDS, "others", "testing")
        for dotted in modules_for(kind)
    }
    for path in REFERENCE.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def page_for(dotted: str) -> Iterator[str]:
    """Document what a module has for its users, in reStructuredText."""
    module = import_module(dotted)
    yield from (dotted, "=" * len(dotted), "")
    # A package exports its names, from modules that are nobody's business; a module, all that it
    # defines.
    is_package = hasattr(module, "__path__") and hasattr(module, "__all__")
    if not is_package:
        yield from (f".. automodule:: {dotted}", "   :no-members:", "")
    else:
        yield from (f".. module:: {dotted}", "", inspect.getdoc(module) or "", "")
    names = (
        [(name, getattr(module, name)) for name in module.__all__]
        if is_package
        else names_for(module)
    )
    for name, thing in names:
        if not inspect.ismodule(thing) and not is_internal(thing):
            yield from documented(dotted, name, thing)
    for name in EXPORTED_BY.get(dotted, ()):
        yield from documented(dotted, name, getattr(module, name))


def is_internal(thing: Any) -> bool:
    """Return whether a class is there for others to be built on: its arguments are shown with
    theirs.
    """
    if not inspect.isclass(thing):
        return getattr(thing, "__name__", "") in FOR_AIRFLOW
    return summary_for(thing).startswith("Base of ") and not issubclass(thing, Exception)


def documented(module: str, name: str, thing: Any) -> Iterator[str]:
    """Document a class or a function; of a record its fields instead of a long signature."""
    if not callable(thing):
        yield from (f".. autodata:: {module}.{name}", "   :no-value:", "")
        return
    if not inspect.isclass(thing):
        yield from (f".. autofunction:: {module}.{name}", "")
        return
    yield f".. autoclass:: {module}.{name}"
    if issubclass(thing, BaseModel) or is_typeddict(thing) or hasattr(thing, "_fields"):
        yield from ("   :no-members:", "", *fields_for(thing), "")
        return
    # Of the errors each has what their base has; the fake's methods are those of its bases.
    own = module.startswith(("fsm_provider.api", "fsm_provider.testing")) and not issubclass(
        thing, Exception
    )
    based = [] if thing.__bases__ == (object,) else ["   :show-inheritance:"]
    yield from ("   :members:", *(["   :inherited-members:"] if own else based), "")


def show_public_bases(_: Sphinx, __: str, ___: type, ____: Any, bases: list[Any]) -> None:
    """Show in place of a base that nobody uses by itself what it is based on."""

    def public(base: Any) -> Iterator[Any]:
        if getattr(base, "__name__", "").startswith("_") or is_internal(base):
            for further in base.__bases__:
                yield from public(further)
        elif base is not object:
            yield base

    bases[:] = dict.fromkeys(one for base in bases for one in public(base)) or bases


def fields_for(record: type) -> Iterator[str]:
    """Make a table of a record's fields: our name, the service's where there is one, and the type."""
    annotations: dict[str, Any] = {}
    for owner in reversed(record.__mro__):
        annotations |= vars(owner).get("__annotations__", {})
    rows = [(name, name, annotations[name]) for name in annotations]
    if issubclass(record, BaseModel):
        fields = record.model_fields.items()
        rows = [(name, field.alias or name, annotations[name]) for name, field in fields]
    has_aliases = issubclass(record, BaseModel)
    yield from ("   .. list-table::", "      :header-rows: 1", "")
    yield from cells("field", *["of the service"] * has_aliases, "type")
    for name, alias, annotation in rows:
        texts = (name, *[alias] * has_aliases, plain_type(annotation))
        yield from cells(*(f"``{text}``" for text in texts))


def cells(first: str, *others: str) -> Iterator[str]:
    """Make a row of a table."""
    yield f"      * - {first}"
    yield from (f"        - {text}" for text in others)


def plain_type(annotation: Any) -> str:
    """Give a type as it stands in the code, without names of ours for the types that everybody
    knows.
    """
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for pattern, plainer in PLAIN_TYPES.items():
        text = re.sub(pattern, plainer, text)
    return text


def add_types(_: Sphinx, what: str, __: str, thing: Any, ___: Any, lines: list[str]) -> None:
    """Add each parameter's type to a docstring, and to a class's what its bases say of its
    parameters.
    """
    if what not in ("class", "function", "method") or (
        inspect.isclass(thing) and issubclass(thing, BaseModel)
    ):
        return
    known = set(re.findall(r"^:param (\w+):", "\n".join(lines), re.MULTILINE))
    typed: set[str] = set()
    try:
        signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    for owner in thing.__mro__ if inspect.isclass(thing) else [thing]:
        is_ours = owner is not thing and owner.__module__.startswith("fsm_provider")
        described = dict(parameters_for(inspect.getdoc(owner) or "")) if is_ours else {}
        for name, parameter in signature.parameters.items():
            if name in described and name not in known:
                lines.extend([*described[name], ""])
                known.add(name)
            is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            is_undescribed = (
                owner is thing and not inspect.isclass(thing) and is_named and name != "self"
            )
            if is_undescribed and name not in known and parameter.annotation is not parameter.empty:
                lines.append(f":param {name}:")
                known.add(name)
            if name in known and name not in typed:
                lines.extend(type_for(name, parameter))
                typed.add(name)
    if what != "class" and any(line.startswith((":return:", ":yield:")) for line in lines):
        returned = inspect.signature(thing).return_annotation
        if returned is not inspect.Signature.empty:
            lines.extend([f":rtype: ``{plain_type(returned)}``", ""])
    move_fields_to_the_end(lines)


def type_for(name: str, parameter: inspect.Parameter) -> list[str]:
    """Make the field of a parameter's type."""
    if parameter.annotation is inspect.Parameter.empty:
        return []
    return [f":type {name}: ``{plain_type(parameter.annotation)}``"]


def parameters_for(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Give the fields of a docstring's parameters, each with the lines that go on with it."""
    name, field = "", []
    for line in [*docstring.splitlines(), ""]:
        if field and (not line.startswith(" ") or not line.strip()):
            yield name, field
            field = []
        if found := re.match(r":param (\w+):", line):
            name, field = found[1], [line]
        elif field:
            field.append(line)


def move_fields_to_the_end(lines: list[str]) -> None:
    """Let one list of fields end a docstring, so that all parameters stand together."""
    text: list[str] = []
    fields: list[list[str]] = []
    in_field = False
    for line in lines:
        if re.match(r":(param|type|return|rtype|raises|yield|cvar|ivar)\b", line):
            fields.append([])
            in_field = True
        in_field = in_field and (line.startswith((":", " ")))
        (fields[-1] if in_field else text).append(line)
    fields.sort(key=lambda field: field[0].startswith((":return", ":rtype", ":raises", ":yield")))
    lines[:] = [*text, "", *(line for field in fields for line in field), ""]


def leave_internals_plain(
    _: Sphinx, __: Any, node: nodes.Element, content: nodes.Node
) -> nodes.Node | None:
    """Show a reference to something that is there but has no page as text; a dead one stays a
    warning.
    """
    target = str(node.get("reftarget", ""))
    return content if is_there(target) or is_there(f"{node.get('py:module')}.{target}") else None


def is_there(dotted: str) -> bool:
    """Return whether a dotted path names something of this package."""
    if not dotted.startswith("fsm_provider"):
        return False
    try:
        resolve_name(dotted)
    except (AttributeError, ImportError):
        return is_module(dotted)
    return True


def is_module(dotted: str) -> bool:
    """Return whether there is a module, which may need what the pages are built without, such as
    pytest.
    """
    try:
        return find_spec(dotted) is not None
    except ImportError:
        return False


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Write ``llms.txt``: each page with its title and its first sentence, in the order of the
    contents.
    """
    if error or app.builder.name != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {SUMMARY}", "", "## Pages", ""]
    for page in app.env.toctree_includes["index"]:
        document = app.env.get_doctree(page)
        first = next(document.findall(nodes.paragraph), None)
        sentence = re.split(r"(?<=\.) ", first.astext().replace("\n", " "))[0] if first else ""
        lines.append(f"- [{app.env.titles[page].astext()}]({page}.html): {sentence}")
    lines += ["", "## API reference", ""]
    lines += [
        f"- [{path.stem}](reference/{path.stem}.html)" for path in sorted(REFERENCE.glob("*.rst"))
    ]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def directive(make: Callable[..., Iterable[str]]) -> type[SphinxDirective]:
    """Make a directive of what gives the lines of its content."""

    class Listing(SphinxDirective):
        optional_arguments = 1

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(
                "\n".join(make(*self.arguments)), allow_section_headings=True
            )

    return Listing


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for name, make in {
        "fsm-classes": classes,
        "fsm-errors": error_classes,
        "fsm-examples": examples,
        "fsm-reference": reference,
    }.items():
        app.add_directive(name, directive(make))
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", add_types)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("missing-reference", leave_internals_plain)
    app.connect("build-finished", write_llms_txt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
