"""Follows the links of built pages, and of the Markdown files beside them, as far as they lead to
files.

``make docs`` runs ``python -m tests.links build/docs/html README.md ...``.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


class Markdown:
    """The same of a Markdown file, with the anchors that its headings have on GitHub."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        headings = re.findall(r"^#+ (.*)$", text.lower(), re.MULTILINE)
        self.anchors = {
            "",
            *(re.sub(r"[^\w-]", "", heading.replace(" ", "-")) for heading in headings),
        }
        self.links: list[str] = re.findall(r"\]\(([^)\s]+)\)", text)


PARSERS = {".html": Page, ".md": Markdown, ".txt": Markdown}


@cache
def parsed(path: Path) -> Page | Markdown:
    return PARSERS[path.suffix](path)


def broken(path: Path, root: Path) -> Iterator[str]:
    """Give the links of a file that lead nowhere, or out of the folder that is published."""
    for link in parsed(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir() and (target / "index.html").exists():
            target /= "index.html"
        is_there = target.is_file() and target.is_relative_to(root)
        has_anchors = is_there and parts.fragment and target.suffix in PARSERS
        if not is_there or (has_anchors and unquote(parts.fragment) not in parsed(target).anchors):
            yield f"{path.relative_to(root)}: {link}"


def broken_below(start: Path) -> list[str]:
    """Give the broken links of a file, or of all pages in a folder."""
    start = start.resolve()
    if start.is_file():
        return list(broken(start, start.parent))
    paths = [*start.rglob("*.html"), *start.rglob("llms.txt")]
    return [link for path in sorted(paths) for link in broken(path, start)]


if __name__ == "__main__":
    found = [link for start in sys.argv[1:] for link in broken_below(Path(start))]
    print("\n".join(f"broken link in {link}" for link in found), end="\n" if found else "")
    sys.exit(bool(found))
