"""The pages of the documentation, as their tests read them."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
]
_FENCE = re.compile(
    r"(?:^ *<!-- code: (?P<source>\S+).* -->\n)?"
    r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>(?s:.*?))^(?P=indent)```$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``kind`` is what stands behind its fence.

    ``source`` is the file of which it shows a part (:mod:`tests.snippets`).
    """

    page: Path
    line: int
    kind: str
    text: str
    source: Path | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*kinds: str, pages: list[Path] = PAGES) -> list[Block]:
    """Give the blocks of these kinds that show no other file, all where none is named."""
    wanted: list[Block] = []
    for page in pages:
        for block in all_blocks(page):
            is_wanted = not kinds or block.kind in kinds
            if is_wanted and block.source is None:
                wanted.append(block)
    return wanted


def all_blocks(page: Path) -> Iterator[Block]:
    """Give the blocks of a page, in their order."""
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, fence.start()) + 1,
            kind=fence["kind"],
            text=textwrap.dedent(fence["text"]),
            source=ROOT / fence["source"] if fence["source"] else None,
        )


def prose(page: Path) -> str:
    """Give the text of a page without its code, its tables and its comments."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)


def block_with(text: str, kind: str, page: Path) -> str:
    """Give the only block of this kind on a page that has a text."""
    (block,) = [block for block in blocks(kind, pages=[page]) if text in block.text]
    return block.text


def commands_with_output(page: Path, name: str) -> list[tuple[list[str], str]]:
    """Give the arguments of each ``python -m fsm_provider NAME``, and the output that is shown."""
    texts = ""
    for block in blocks("text", pages=[page]):
        if block.text.startswith("$"):
            texts += block.text
    command = rf"^\$ python -m fsm_provider {name} (.*)\n((?:[^$].*\n)*)"
    shown = re.findall(command, texts, re.MULTILINE)
    return [(shlex.split(arguments), output) for arguments, output in shown]
