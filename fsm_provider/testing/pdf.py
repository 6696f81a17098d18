"""PDFs of text and lines, as small as a viewer opens, and the PDF of a form."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from fsm_provider.testing.form_pdf import FormPdf

WIDTH = 595.0
HEIGHT = 842.0
"""Size of a page in points: A4."""
MARGIN = 50.0
SIZE = 10.0
"""Size of the text in points."""
LINE_HEIGHT = 14.0
WIDEST_CHARACTER = 0.56
"""Width of a character for a size of 1; most are narrower."""
LAST_LINE = HEIGHT - 2 * MARGIN
ADDRESS = ("jobAddressLine1", "jobTown", "jobPostcode")
"""Fields of a job."""
FONTS = {"F1": "Helvetica", "F2": "Helvetica-Bold"}
"""Fonts that each viewer has."""


class PdfDocument:
    """Collects the text and the lines of pages, then makes the file.

    The distances are in points, from the left and from the top of the last page.

    :param title: of the document, which its pages do not show.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._pages: list[list[str]] = []

    def add_page(self) -> None:
        """Add a page, on which all comes from now on."""
        self._pages.append([])

    def add_text(
        self, x: float, y: float, text: str, *, size: float = SIZE, bold: bool = False
    ) -> None:
        """Write one line of text; a character that Latin-1 lacks becomes a question mark."""
        font = "F2" if bold else "F1"
        place = f"1 0 0 1 {x:g} {HEIGHT - y:g} Tm"
        self._pages[-1].append(f"BT /{font} {size:g} Tf {place} ({_escaped(text)}) Tj ET")

    def add_line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line."""
        self._pages[-1].append(f"{x:g} {HEIGHT - y:g} m {to_x:g} {HEIGHT - to_y:g} l S")

    def to_bytes(self) -> bytes:
        """Make the file."""
        page_numbers = range(6, 6 + 2 * len(self._pages), 2)
        kids = " ".join(f"{number} 0 R" for number in page_numbers)
        objects = [
            "<< /Type /Catalog /Pages 2 0 R >>",
            f"<< /Type /Pages /Kids [{kids}] /Count {len(self._pages)} >>",
            f"<< /Title ({_escaped(self._title)}) >>",
        ]
        objects += [_font_object(font) for font in FONTS.values()]
        for number, content in zip(page_numbers, self._pages, strict=True):
            objects.append(
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {WIDTH:g} {HEIGHT:g}] "
                f"/Resources << /Font << /F1 4 0 R /F2 5 0 R >> >> /Contents {number + 1} 0 R >>"
            )
            objects.append(_stream("\n".join(content)))
        return _file_of(objects)


def _font_object(font: str) -> str:
    return f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding >>"


def _escaped(text: str) -> str:
    return re.sub(r"([\\()])", r"\\\1", text)


def _encoded(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _stream(content: str) -> str:
    return f"<< /Length {len(_encoded(content))} >>\nstream\n{content}\nendstream"


def _file_of(objects: list[str]) -> bytes:
    """Make a file of its objects, which are numbered from 1; the third has the title."""
    document = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(document))
        document += _encoded(f"{number} 0 obj\n{content}\nendobj\n")
    size = len(objects) + 1  # with the entry 0, which is always free
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    ending = (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}"
        f"trailer << /Size {size} /Root 1 0 R /Info 3 0 R >>\n"
        f"startxref\n{len(document)}\n%%EOF\n"
    )
    return document + ending.encode("ascii")


def blank_pdf(title: str) -> bytes:
    """Make a PDF of one blank page with this title."""
    document = PdfDocument(title)
    document.add_page()
    return document.to_bytes()


def wrap(text: str, width: float, size: float = SIZE) -> list[str]:
    """Break a text into lines that are no wider than this, in points; none if it is empty."""
    return textwrap.wrap(text, int(width / (size * WIDEST_CHARACTER)))


def pdf_for(form: Mapping[str, Any], shown: FormPdf) -> bytes:
    """Make the PDF of a form's record; it differs by version."""
    return _FormWriter(form, shown).write()


class _FormWriter:
    """Writes the PDF of a form, from the top of its first page downwards.

    ``_y`` is where the next line of text comes.
    """

    def __init__(self, form: Mapping[str, Any], shown: FormPdf) -> None:
        self._form = form
        self._shown = shown
        self._document = PdfDocument(f"{form['formName']} {form['id']} {_updated(form)}")
        self._pages = 0
        self._y = 0.0

    def write(self) -> bytes:
        self._begin_page()
        self._write_head()
        questions = self._shown.answers_of(self._form)
        for number, (question, answer) in enumerate(questions.items(), start=1):
            if self._shown.layout == "table":
                self._write_row(f"{number}. {question}", answer)
            else:
                self._write_below(f"{number}. {question}", answer)
        return self._document.to_bytes()

    def _begin_page(self) -> None:
        self._pages += 1
        self._document.add_page()
        self._document.add_text(MARGIN, HEIGHT - MARGIN / 2, f"Page {self._pages}", size=8)
        self._y = MARGIN

    def _write_head(self) -> None:
        form = self._form
        job = form.get("jobDetails")
        # A test may give the field any value.
        if not isinstance(job, Mapping):
            job = {}
        address = [str(job.get(name)) for name in ADDRESS]
        self._document.add_text(MARGIN, self._y, str(form["formName"]), size=16, bold=True)
        self._y += LINE_HEIGHT
        for line in (
            f"Version {self._shown.version}",
            f"Form {form['id']}, updated {_updated(form)}",
            f"Job {job.get('jobID')}: {job.get('jobDescription')}",
            f"Property {form.get('propertyID')}: {', '.join(address)}",
            f"Engineer: {form.get('createdByUser')}",
        ):
            self._y += LINE_HEIGHT
            self._document.add_text(MARGIN, self._y, line)
        self._y += 3 * LINE_HEIGHT

    def _write_row(self, question: str, answer: str) -> None:
        """Write a row of a ruled table: the question, and the answer beside it."""
        middle = WIDTH / 2
        right = WIDTH - MARGIN
        column = middle - MARGIN - LINE_HEIGHT
        question_lines = wrap(question, column)
        answer_lines = wrap(answer, column)
        height = LINE_HEIGHT * max(len(question_lines), len(answer_lines)) + LINE_HEIGHT / 2
        self._make_room(height)
        top = self._y - LINE_HEIGHT
        for index, line in enumerate(question_lines):
            self._document.add_text(MARGIN + 6, self._y + index * LINE_HEIGHT, line)
        for index, line in enumerate(answer_lines):
            self._document.add_text(middle + 6, self._y + index * LINE_HEIGHT, line)
        for y in (top, top + height):
            self._document.add_line(MARGIN, y, right, y)
        for x in (MARGIN, middle, right):
            self._document.add_line(x, top, x, top + height)
        self._y += height

    def _write_below(self, question: str, answer: str) -> None:
        """Write the question in bold, and the answer below it."""
        question_lines = wrap(question, WIDTH - 2 * MARGIN)
        answer_lines = wrap(answer, WIDTH - 3 * MARGIN)
        self._make_room(LINE_HEIGHT * (len(question_lines) + len(answer_lines)))
        for line in question_lines:
            self._document.add_text(MARGIN, self._y, line, bold=True)
            self._y += LINE_HEIGHT
        for line in answer_lines:
            self._document.add_text(1.5 * MARGIN, self._y, line)
            self._y += LINE_HEIGHT
        self._y += LINE_HEIGHT / 2

    def _make_room(self, height: float) -> None:
        """Begin another page if so much does not fit on this one."""
        if self._y + height > LAST_LINE:
            self._begin_page()


def _updated(form: Mapping[str, Any]) -> str:
    return str(form.get("lastUpdatedOnDateTime"))
