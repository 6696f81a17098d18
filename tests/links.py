"""Follows the links of built pages and Markdown files, as far as they lead to files.

``make docs`` runs ``python -m tests.links build/docs/html README.md ...``.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name in ("href", "src"):
                self.links.append(value)
            elif name in ("id", "name"):
                self.anchors.add(value)


class Markdown:
    """The same of a Markdown file, with the anchors that its headings have on GitHub."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        self.links: list[str] = re.findall(r"\]\(([^)\s]+)\)", text)
        self.anchors = {""}
        for heading in re.findall(r"^#+ (.*)$", text.lower(), re.MULTILINE):
            self.anchors.add(re.sub(r"[^\w-]", "", heading.replace(" ", "-")))


PARSERS = {
    ".html": Page,
    ".md": Markdown,
    ".txt": Markdown,
}


@cache
def parsed(path: Path) -> Page | Markdown:
    parser = PARSERS[path.suffix]
    return parser(path)


def broken(path: Path, root: Path) -> Iterator[str]:
    """Give the links of a file that lead nowhere, or out of the folder that is published."""
    for link in parsed(path).links:
        parts = urlsplit(link)
        is_external = parts.scheme or parts.netloc
        if not is_external and not is_right(parts, path, root):
            yield f"{path.relative_to(root)}: {link}"


def is_right(link: SplitResult, path: Path, root: Path) -> bool:
    """Return whether the target of a link in a file is published, and has the anchor."""
    target = target_of(link, path)
    if not target.is_file() or not target.is_relative_to(root):
        return False
    if not link.fragment or target.suffix not in PARSERS:
        return True
    return unquote(link.fragment) in parsed(target).anchors


def target_of(link: SplitResult, path: Path) -> Path:
    """Return the file that a link in a file leads to; that of a folder is its index."""
    if not link.path:
        return path
    target = (path.parent / unquote(link.path)).resolve()
    index = target / "index.html"
    return index if index.exists() else target


def broken_below(start: Path) -> list[str]:
    """Give the broken links of a file, or of all pages in a folder."""
    start = start.resolve()
    if start.is_file():
        return list(broken(start, start.parent))
    links: list[str] = []
    paths = [*start.rglob("*.html"), *start.rglob("llms.txt"), *start.glob("*.md")]
    for path in sorted(paths):
        links += broken(path, start)
    return links


def main(starts: list[str]) -> int:
    """Print the broken links of files and folders; the return value is the exit code."""
    has_broken = False
    for start in starts:
        for link in broken_below(Path(start)):
            print(f"broken link in {link}")
            has_broken = True
    return int(has_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
