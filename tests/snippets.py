"""Writes into the pages what they show of tested code, so that they are read without a build.

``python -m tests.snippets`` rewrites the pages; ``tests/unit/test_docs.py`` fails while one is old.
Two kinds of comments in a page ask for it::

    <!-- code: example_dags/quickstart.py howto_quickstart -->
    <!-- list: operators -->

The first stands before a fenced block, which becomes the text between ``[START ...]`` and
``[END ...]`` of that file, or the whole file where no name is given. The second stands before a
list or a table, up to the next empty line.
"""

import re
import textwrap

from tests.listings import LISTINGS
from tests.pages import PAGES, ROOT

CODE = re.compile(
    r"^(?P<indent> *)<!-- code: (?P<path>\S+)(?: (?P<name>\S+))? -->\n"
    r"(?P=indent)```(?P<kind>\w+)\n.*?^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
LIST = re.compile(r"^<!-- list: (?P<name>\S+) -->\n\n(?:[^\n]+\n)*", re.MULTILINE)


def code_from(path: str, name: str | None) -> str:
    """Return a file's text, or what stands in it between the markers of a name."""
    text = (ROOT / path).read_text()
    if name is None:
        return text
    begins_and_ends = re.compile(
        rf"^ *# \[START {name}\]\n(?P<code>.*?)^ *# \[END {name}\]$", re.DOTALL | re.MULTILINE
    )
    (region,) = begins_and_ends.finditer(text)
    return textwrap.dedent(region["code"])


def rewritten(page: str) -> str:
    """Return a page's text with its code and its lists as they are now."""
    return LIST.sub(_list, CODE.sub(_code, page))


def _code(found: re.Match[str]) -> str:
    path, name, kind = found["path"], found["name"], found["kind"]
    marker = f"<!-- code: {path} {name} -->" if name else f"<!-- code: {path} -->"
    code = code_from(path, name).strip("\n")
    return textwrap.indent(f"{marker}\n```{kind}\n{code}\n```", found["indent"])


def _list(found: re.Match[str]) -> str:
    name = found["name"]
    return "\n".join([f"<!-- list: {name} -->", "", *LISTINGS[name](), ""])


def main() -> None:
    """Rewrite the pages that differ, and name them."""
    for page in PAGES:
        text = page.read_text()
        as_it_is_now = rewritten(text)
        if text != as_it_is_now:
            page.write_text(as_it_is_now)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
