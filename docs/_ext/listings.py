"""What a build adds to the pages: the API reference, and the links to it.

The reference is a page per public module, written into ``docs/reference`` when a build begins. A
public name that stands in a page as code becomes a link to it: the Markdown itself names no page
that only a build makes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from shutil import copyfile
from typing import Any, ForwardRef, is_typeddict

from docutils import nodes
from pydantic import BaseModel
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tests.listings import modules_for, names_for, summary_for

SUMMARY = metadata("airflow-provider-fsm")["Summary"]
DOCS = Path(__file__).parents[1]
REFERENCE = DOCS / "reference"
EXPORTED_BY = {
    "fsm_provider.operators.jobs": ("JobOutcome", "outcomes_as_text"),
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


def reference(kind: str) -> Iterator[str]:
    """List the pages of a kind's modules."""
    yield ".. toctree::"
    yield ""
    for dotted in modules_for(kind):
        yield f"   reference/{dotted}"
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
    pages: dict[str, str] = {}
    for kind in (*KINDS, "others", "testing"):
        for dotted in modules_for(kind):
            lines = list(page_for(dotted))
            pages[f"{dotted}.rst"] = "\n".join(lines) + "\n"
    for path in REFERENCE.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = REFERENCE / name
        is_right = path.exists() and path.read_text() == text
        if not is_right:
            path.write_text(text)


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Add to two pages what their Markdown leaves to a reader of the repository.

    The lists of links below the headings of the index become the contents of the pages; the
    changelog is shown in place of the link to it.
    """
    if page == "index":
        sections = re.findall(r"^## (.+)\n\n((?:- .+\n)+)", source[0], re.MULTILINE)
        for caption, links in sections:
            pages = re.findall(r"\]\((\w+)\.\w+\)", links)
            source[0] += "\n".join(
                ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]
            )
    elif page == "changelog":
        source[0] = (DOCS.parent / "CHANGELOG.md").read_text()


def link_public_names(app: Sphinx, document: nodes.document) -> None:
    """Make a link of each public name that stands in a page as code."""
    page = app.env.current_document.docname
    if page.startswith("reference"):
        return
    dotted_names = public_names()
    for literal in list(document.findall(nodes.literal)):
        dotted = dotted_names.get(literal.astext())
        if dotted is None or isinstance(literal.parent, nodes.reference):
            continue
        link = pending_xref(
            "", refdomain="py", reftype="obj", reftarget=dotted, refdoc=page, refexplicit=True
        )
        literal.replace_self(link)
        link += literal


@cache
def public_names() -> dict[str, str]:
    """Give the dotted path of each class and function that the reference shows, by its name."""
    dotted_names: dict[str, str] = {}
    for kind in (*KINDS, "others", "testing"):
        for dotted in modules_for(kind):
            for name, _ in names_on_page(dotted, import_module(dotted)):
                dotted_names.setdefault(name, f"{dotted}.{name}")
    return dotted_names


def page_for(dotted: str) -> Iterator[str]:
    """Document what a module has for its users, in reStructuredText."""
    module = import_module(dotted)
    yield dotted
    yield "=" * len(dotted)
    yield ""
    if is_package(module):
        yield f".. module:: {dotted}"
        yield ""
        yield inspect.getdoc(module) or ""
        yield ""
    else:
        yield f".. automodule:: {dotted}"
        yield "   :no-members:"
        yield ""
    for name, thing in names_on_page(dotted, module):
        yield from documented(dotted, name, thing)


def is_package(module: Any) -> bool:
    """Return whether a module exports names, from modules that are nobody's business."""
    return hasattr(module, "__path__") and hasattr(module, "__all__")


def names_on_page(dotted: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Give what a module's page documents: what a package exports, what a module defines."""
    names = list(names_for(module))
    if is_package(module):
        names = [(name, getattr(module, name)) for name in module.__all__]
    for name, thing in names:
        if not inspect.ismodule(thing) and not is_internal(thing):
            yield name, thing
    for name in EXPORTED_BY.get(dotted, ()):
        yield name, getattr(module, name)


def is_internal(thing: Any) -> bool:
    """Return whether something is nobody's business.

    A class is that others are built on, whose arguments are shown with theirs.
    """
    if not inspect.isclass(thing):
        return getattr(thing, "__name__", "") in FOR_AIRFLOW
    return summary_for(thing).startswith("Base of ") and not issubclass(thing, Exception)


def documented(module: str, name: str, thing: Any) -> Iterator[str]:
    """Document a class or a function; of a record its fields instead of a long signature."""
    if not callable(thing):
        yield f".. autodata:: {module}.{name}"
        yield "   :no-value:"
        yield ""
        return
    if not inspect.isclass(thing):
        yield f".. autofunction:: {module}.{name}"
        yield ""
        return
    yield f".. autoclass:: {module}.{name}"
    is_record = issubclass(thing, BaseModel) or is_typeddict(thing) or hasattr(thing, "_fields")
    if is_record:
        yield "   :no-members:"
        yield ""
        yield from fields_for(thing)
        yield ""
        return
    yield "   :members:"
    # Of the errors each has what their base has; the fake's methods are those of its bases.
    is_error = issubclass(thing, Exception)
    shows_inherited = module.startswith(("fsm_provider.api", "fsm_provider.testing"))
    if shows_inherited and not is_error:
        yield "   :inherited-members:"
    elif thing.__bases__ != (object,):
        yield "   :show-inheritance:"
    yield ""


def show_public_bases(_: Sphinx, __: str, ___: type, ____: Any, bases: list[Any]) -> None:
    """Show in place of a base that nobody uses by itself what it is based on."""
    shown: list[Any] = []
    for base in bases:
        for public_base in public_bases(base):
            if public_base not in shown:
                shown.append(public_base)
    if shown:
        bases[:] = shown


def public_bases(base: Any) -> Iterator[Any]:
    """Give a base, or what it is based on where nobody uses it by itself."""
    is_private = getattr(base, "__name__", "").startswith("_")
    if is_private or is_internal(base):
        for further in base.__bases__:
            yield from public_bases(further)
    elif base is not object:
        yield base


def fields_for(record: type) -> Iterator[str]:
    """Make a table of a record's fields: our name, that of the service if it has one, the type."""
    annotations: dict[str, Any] = {}
    for owner in reversed(record.__mro__):
        annotations |= vars(owner).get("__annotations__", {})
    yield "   .. list-table::"
    yield "      :header-rows: 1"
    yield ""
    if issubclass(record, BaseModel):
        yield from table_row("field", "of the service", "type")
        for name, field in record.model_fields.items():
            alias = field.alias or name
            annotation = plain_type(annotations[name])
            yield from table_row(f"``{name}``", f"``{alias}``", f"``{annotation}``")
    else:
        yield from table_row("field", "type")
        for name in annotations:
            annotation = plain_type(annotations[name])
            yield from table_row(f"``{name}``", f"``{annotation}``")


def table_row(first: str, *others: str) -> Iterator[str]:
    """Make a row of a table."""
    yield f"      * - {first}"
    for text in others:
        yield f"        - {text}"


def plain_type(annotation: Any) -> str:
    """Give a type as it stands in the code, but with the names that everybody knows."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for pattern, plainer in PLAIN_TYPES.items():
        text = re.sub(pattern, plainer, text)
    return text


def add_types(_: Sphinx, what: str, __: str, thing: Any, ___: Any, lines: list[str]) -> None:
    """Add each parameter's type to a docstring.

    To that of a class is added what its bases say of its parameters.
    """
    is_class = inspect.isclass(thing)
    if what not in ("class", "function", "method"):
        return
    if is_class and issubclass(thing, BaseModel):
        return
    parameters = parameters_of(thing)
    described = set(re.findall(r"^:param (\w+):", "\n".join(lines), re.MULTILINE))
    for name, parameter in parameters.items():
        if name not in described and not is_class and is_worth_a_line(parameter):
            lines.append(f":param {name}:")
            described.add(name)
        if name in described:
            lines.extend(type_for(parameter))
    if is_class:
        add_descriptions_of_bases(thing, parameters, described, lines)
    else:
        add_return_type(thing, lines)
    move_fields_to_the_end(lines)


def parameters_of(thing: Any) -> dict[str, inspect.Parameter]:
    """Give the parameters of a function, or of the making of a class, by name."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    return dict(signature.parameters)


def is_worth_a_line(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter that is not described is listed for its type."""
    is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    has_type = parameter.annotation is not parameter.empty
    return is_named and has_type and parameter.name != "self"


def type_for(parameter: inspect.Parameter) -> list[str]:
    """Make the field of a parameter's type."""
    if parameter.annotation is inspect.Parameter.empty:
        return []
    return [f":type {parameter.name}: ``{plain_type(parameter.annotation)}``"]


def add_descriptions_of_bases(
    thing: type,
    parameters: dict[str, inspect.Parameter],
    described: set[str],
    lines: list[str],
) -> None:
    """Add what the bases of a class say of its parameters that it does not describe itself."""
    for base in thing.__mro__[1:]:
        if not base.__module__.startswith("fsm_provider"):
            continue
        fields = dict(parameter_fields(inspect.getdoc(base) or ""))
        for name, parameter in parameters.items():
            if name in fields and name not in described:
                lines.extend([*fields[name], ""])
                lines.extend(type_for(parameter))
                described.add(name)


def add_return_type(function: Any, lines: list[str]) -> None:
    """Add the type of what a function returns, where its docstring says what that is."""
    is_described = any(line.startswith((":return:", ":yield:")) for line in lines)
    if not is_described:
        return
    returned = inspect.signature(function).return_annotation
    if returned is not inspect.Signature.empty:
        lines.extend([f":rtype: ``{plain_type(returned)}``", ""])


def parameter_fields(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Give the fields of a docstring's parameters, each with the lines that go on with it."""
    name = ""
    field: list[str] = []
    for line in [*docstring.splitlines(), ""]:
        goes_on = line.startswith(" ") and line.strip() != ""
        if field and not goes_on:
            yield name, field
            field = []
        start = re.match(r":param (\w+):", line)
        if start:
            name = start[1]
            field = [line]
        elif field:
            field.append(line)


def move_fields_to_the_end(lines: list[str]) -> None:
    """Let one list of fields end a docstring, so that all parameters stand together."""
    text: list[str] = []
    fields_of_parameters: list[str] = []
    fields_of_results: list[str] = []
    part = text
    for line in lines:
        if re.match(r":(return|rtype|raises|yield)", line):
            part = fields_of_results
        elif re.match(r":(param|type|cvar|ivar)\b", line):
            part = fields_of_parameters
        elif not line.startswith((":", " ")):
            part = text
        part.append(line)
    lines[:] = [*text, "", *fields_of_parameters, *fields_of_results, ""]


def leave_internals_plain(
    _: Sphinx, __: Any, node: nodes.Element, content: nodes.Node
) -> nodes.Node | None:
    """Show a reference to something that has no page as text; a dead one stays a warning."""
    target = str(node.get("reftarget", ""))
    in_its_module = f"{node.get('py:module')}.{target}"
    if is_there(target) or is_there(in_its_module):
        return content
    return None


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
    """Return whether there is a module.

    It may need what the pages are built without, such as pytest.
    """
    try:
        return find_spec(dotted) is not None
    except ImportError:
        return False


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Write ``llms.txt``: title and first sentence of each page as Markdown, in their order."""
    if error or app.builder.name != "html":
        return
    lines = [
        f"# {app.config.project}",
        "",
        f"> {SUMMARY}",
        "",
        "## Pages",
        "",
    ]
    for page in app.env.toctree_includes["index"]:
        title = app.env.titles[page].astext()
        sentence = first_sentence(app.env.get_doctree(page))
        suffix = "md" if (DOCS / f"{page}.md").exists() else "html"
        lines.append(f"- [{title}]({page}.{suffix}): {sentence}")
    lines += ["", "## API reference", ""]
    for path in sorted(REFERENCE.glob("*.rst")):
        module = path.stem
        lines.append(f"- [{module}](reference/{module}.html)")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def copy_markdown(app: Sphinx, error: Exception | None) -> None:
    """Put each page as Markdown beside the built one, and what it links to below ``source``."""
    if error or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    for page in DOCS.glob("*.md"):
        text = page.read_text()
        if page.name == "changelog.md":
            text = (DOCS.parent / "CHANGELOG.md").read_text()
        text = re.sub(
            r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]+)?\)",
            lambda link: f"]({target_beside(link['path'], folder)}{link['anchor'] or ''})",
            text,
        )
        (folder / page.name).write_text(text)


def target_beside(path: str, folder: Path) -> str:
    """Return where a link of a page leads from its copy; a file that is no page is copied, too."""
    target = (DOCS / path).resolve()
    if target.parent == DOCS:
        return path.replace(".rst", ".html")
    if not target.is_file():
        return path
    copied = Path("source") / target.relative_to(DOCS.parent)
    (folder / copied).parent.mkdir(parents=True, exist_ok=True)
    copyfile(target, folder / copied)
    return copied.as_posix()


def first_sentence(document: nodes.document) -> str:
    """Give the first sentence of a page; nothing if it has no paragraph."""
    for paragraph in document.findall(nodes.paragraph):
        text = paragraph.astext().replace("\n", " ")
        sentence, *_ = re.split(r"(?<=\.) ", text)
        return str(sentence)
    return ""


def directive(make: Callable[..., Iterable[str]]) -> type[SphinxDirective]:
    """Make a directive of what gives the lines of its content."""

    class Listing(SphinxDirective):
        optional_arguments = 1

        def run(self) -> list[nodes.Node]:
            lines = make(*self.arguments)
            return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    return Listing


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("fsm-reference", directive(reference))
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", add_types)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("source-read", complete)
    app.connect("doctree-read", link_public_names)
    app.connect("missing-reference", leave_internals_plain)
    app.connect("build-finished", write_llms_txt)
    app.connect("build-finished", copy_markdown)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
