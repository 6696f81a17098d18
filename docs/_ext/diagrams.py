"""Draws the Mermaid diagrams of the pages, which a code host draws by itself.

The reader's browser draws them, with a script that is part of the built pages: nothing is loaded
from elsewhere. ``make docs`` says where the script is; without it, a page shows a diagram's text.
"""

from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "build" / "mermaid" / "mermaid.min.js"
SHA256 = "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
"""Of version 11.16.0, which the Makefile names."""
ON_WHITE = "background: #fff; color: #000; text-align: center"
"""The colours of the diagrams are for a light page, also in the dark."""


def add_script(app: Sphinx) -> None:
    """Take the script into the built pages, if it is there and is the one that is known."""
    if not SCRIPT.exists():
        return
    if sha256(SCRIPT.read_bytes()).hexdigest() != SHA256:
        raise ConfigError(f"{SCRIPT} is not the Mermaid that is known: remove its folder")
    app.config.html_static_path.append(str(SCRIPT))


def mark_diagrams(_: Sphinx, document: nodes.document) -> None:
    """Make of each fenced block of a diagram what the script looks for."""
    for block in list(document.findall(nodes.literal_block)):
        if block.get("language") == "mermaid":
            text = f'<pre class="mermaid" style="{ON_WHITE}">{escape(block.astext())}</pre>'
            block.replace_self(nodes.raw("", text, format="html"))


def load_script(
    app: Sphinx, _page: str, _template: str, _context: Any, document: nodes.document | None
) -> None:
    """Load the script on pages with a diagram; it draws them by itself."""
    has_diagram = document is not None and any(
        'class="mermaid"' in block.astext() for block in document.findall(nodes.raw)
    )
    if has_diagram and SCRIPT.exists():
        app.add_js_file(SCRIPT.name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the three, as Sphinx asks of an extension."""
    app.connect("builder-inited", add_script)
    app.connect("doctree-read", mark_diagrams)
    app.connect("html-page-context", load_script)
    return {"parallel_read_safe": True}
