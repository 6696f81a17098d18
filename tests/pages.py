"""The pages of the documentation, as their tests read them."""

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
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
    found = [
        Block(
            page,
            text.count("\n", 0, fence.start()) + 1,
            fence["kind"],
            textwrap.dedent(fence["text"]),
        )
        for page in pages
        for text in [page.read_text()]
        for fence in _FENCE.finditer(text)
    ]
    return [block for block in found if not kinds or block.kind in kinds]


def commands_with_output(page: Path, name: str) -> list[tuple[list[str], str]]:
    """Give the arguments of each ``python -m fsm_provider NAME`` of a page, and the output that it
    shows.
    """
    texts = "".join(
        block.text for block in blocks("text", pages=[page]) if block.text.startswith("$")
    )
    shown = re.findall(
        rf"^\$ python -m fsm_provider {name} (.*)\n((?:[^$].*\n)*)", texts, re.MULTILINE
    )
    return [(shlex.split(arguments), output) for arguments, output in shown]
