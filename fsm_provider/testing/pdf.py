"""The smallest PDF that a viewer opens, for a form's ``formPDFURL``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def pdf_for(form: Mapping[str, Any]) -> bytes:
    """Make the PDF of a form's record; it differs by version."""
    return blank_pdf(f"{form['formName']} {form['id']} {form['lastUpdatedOnDateTime']}")


def blank_pdf(title: str) -> bytes:
    """Make a PDF of one blank page with this title."""
    escaped = re.sub(r"([\\()])", r"\\\1", title)
    objects = (
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] >>",
        f"<< /Title ({escaped}) >>",
    )
    document = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(document))
        document += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1", "replace")
    size = len(objects) + 1  # with the entry 0, which is always free
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    ending = (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}"
        f"trailer << /Size {size} /Root 1 0 R /Info 4 0 R >>\n"
        f"startxref\n{len(document)}\n%%EOF\n"
    )
    return document + ending.encode("ascii")
