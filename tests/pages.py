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
_FENCE = re.compile(r"^( *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``kind`` is what stands behind its fence."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*kinds: str, pages: list[Path] = PAGES) -> list[Block]:
    """Give the blocks of these kinds, all where none is named."""
    wanted: list[Block] = []
    for page in pages:
        for block in _blocks_of_page(page):
            is_wanted = not kinds or block.kind in kinds
            if is_wanted:
                wanted.append(block)
    return wanted


def _blocks_of_page(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, fence.start()) + 1,
            kind=fence["kind"],
            text=textwrap.dedent(fence["text"]),
        )


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
