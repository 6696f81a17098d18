"""PDFs of forms in ten layouts and three versions, and how many of them a reader reads.

``python -m tests.form_pdfs`` makes 500 of them by a seed, has the reader of the examples read
them, and prints the table of ``docs/measured.md``; ``--folder`` keeps the files. Some are spoiled:
scans, damaged files, a font that says other letters, a question that nobody knows, a stray note, an
odd answer.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fsm_provider.testing.pdf import HEIGHT, WIDTH, PdfDocument, wrap
from tests.pages import ROOT

FORM_NAME = "Gas Safety Record"
MAKES = (
    "Worcester Greenstar 30i",
    "Baxi Duo-tec 24",
    "Vaillant ecoTEC plus 832, in the flat above the shop and behind a false wall",
    "Ideal Logic+ C30",
    "Glow-worm",
)
PLACES = ("Kitchen", "Loft", "Cupboard on the first floor", "Utility room, ground floor", "Garage")
DEFECTS = (
    "None",
    "The flue is not sealed where it leaves the wall.",
    "2 screws of the case are missing; the seal of the case is worn and was replaced.",
    "Low pressure (0.4 bar). Topped up to 1.2 bar, see photo 3.",
    "No ventilation: the grille was painted over. The tenant was told to keep the window open until"
    " it is replaced. Condensate pipe is not lagged and may freeze.",
    "Pilot light goes out; thermocouple is at the end of its life. Part ordered: 10-20 days.",
)
REMARKS = (
    "",
    "",
    "None",
    "Dog in the garden.",
    "Please ring before the next visit, on Mondays only",
)
QUESTIONS = {
    "Make and model of the appliance": MAKES,
    "Where is the appliance?": PLACES,
    "Is the flue clear, and does it end in a safe place?": ("Yes", "Yes", "Yes", "No", "N/A"),
    "Is a carbon monoxide alarm fitted?": ("Yes", "No"),
    "Operating pressure in mbar": ("20.1", "19", "20.85"),
    "Is the appliance safe to use?": ("Safe", "Safe", "Unsafe"),
    "Defects that were found": DEFECTS,
    "Date of the check": ("2026-01-05", "2026-11-30"),
    "Remarks": REMARKS,
}
"""Each question, and what may be its answer."""
VERSIONS = {
    1: (0, 1, 2, 4, 5, 6, 7),
    2: (0, 1, 2, 3, 5, 6, 7, 8),
    3: (7, 0, 1, 5, 2, 3, 6, 4, 8),
}
"""The questions of each version by their places in ``QUESTIONS``, in their order."""
UNKNOWN = "Was the gas supplier told?"
"""A question that is not on this form, as far as the reader knows."""
SPOILED = {
    "scan": 0.015,
    "damaged": 0.01,
    "unreadable font": 0.01,
    "unknown question": 0.01,
    "stray note": 0.01,
    "unusual answer": 0.01,
}
"""What is wrong with a PDF, and how often."""
Row = tuple[str, str, str]
"""Number, question and answer."""


@dataclass(frozen=True)
class MadePdf:
    """A PDF, and what is in it: number, question and answer of each answered question."""

    layout: str
    version: int
    spoiled: str | None
    content: bytes
    answers: list[tuple[int, str, str]]


class Sheet:
    """Writes a form from the top of a page downwards, page after page."""

    def __init__(self, chance: random.Random, head: list[str], pages: str) -> None:
        self.document = PdfDocument(FORM_NAME)
        self.size = chance.choice((8.0, 9.0, 10.0, 11.0))
        self.leading = self.size * chance.choice((1.2, 1.3, 1.4))
        self.margin = float(chance.choice((36, 50, 60)))
        self.gap = self.size * chance.choice((0.9, 1.4, 2.0))
        self.head = head
        self.page_text = pages
        self.page = 0
        self.y = 0.0
        self.begin_page()

    @property
    def right(self) -> float:
        return WIDTH - self.margin

    def begin_page(self) -> None:
        self.page += 1
        self.document.add_page()
        self.document.add_text(
            self.margin, HEIGHT - 25, self.page_text.format(self.page), size=self.size - 1
        )
        self.y = self.margin
        self.document.add_text(self.margin, self.y, FORM_NAME, size=16, bold=True)
        self.y += 24
        for line in self.head:
            self.document.add_text(self.margin, self.y, line, size=self.size)
            self.y += self.leading
        self.y += 24

    def make_room(self, height: float) -> None:
        if self.y + height > HEIGHT - 80:
            self.begin_page()

    def lines(self, text: str, width: float) -> list[str]:
        return wrap(text, width, self.size)

    def put(self, x: float, y: float, lines: list[str], bold: bool = False) -> float:
        """Write lines below each other, and give where the next one would be."""
        for line in lines:
            self.document.add_text(x, y, line, size=self.size, bold=bold)
            y += self.leading
        return y

    def ruled(self, edges: list[float], height: float) -> None:
        """Draw the lines of a table's row, whose first line of text is at ``y``."""
        top = self.y - self.size - 3
        for y in (top, top + height):
            self.document.add_line(edges[0], y, edges[-1], y)
        for x in edges:
            self.document.add_line(x, top, x, top + height)

    def row(self, edges: list[float], cells: list[str], *, centred: bool = False) -> None:
        """Write a row of a ruled table."""
        texts = []
        for left, right, cell in zip(edges, edges[1:], cells, strict=False):
            texts.append(self.lines(cell, right - left - 10))
        count = max(len(lines) for lines in texts)
        height = count * self.leading + 6
        self.make_room(height)
        self.ruled(edges, height)
        for left, lines in zip(edges, texts, strict=False):
            down = (count - len(lines)) * self.leading / 2 if centred else 0.0
            self.put(left + 5, self.y + down, lines)
        self.y += height


def table(sheet: Sheet, rows: list[Row]) -> None:
    """A ruled table: question, answer."""
    edges = [sheet.margin, WIDTH / 2, sheet.right]
    for number, question, answer in rows:
        sheet.row(edges, [f"{number}. {question}", answer])


def three_columns(sheet: Sheet, rows: list[Row]) -> None:
    """A ruled table: number, question, answer; centred in each row."""
    edges = [sheet.margin, sheet.margin + 30, WIDTH / 2 - 40, sheet.right]
    for number, question, answer in rows:
        sheet.row(edges, [number, question, answer], centred=True)


def marks(sheet: Sheet, rows: list[Row]) -> None:
    """A ruled table in which a mark stands for yes, no or not applicable."""
    edges = [sheet.margin, sheet.right - 210, sheet.right - 140, sheet.right - 70, sheet.right]
    choices = ("Yes", "No", "N/A")
    for index, (number, question, answer) in enumerate(rows):
        if index == 0:
            sheet.row(edges, ["", *choices])
        asked = f"{number}. {question}"
        if answer in choices:
            cells = ["X" if choice == answer else "" for choice in choices]
            on_page = sheet.page
            sheet.row(edges, [asked, *cells])
            assert sheet.page == on_page, "a mark needs its heading"
        else:
            sheet.row([edges[0], edges[1], edges[-1]], [asked, answer])


def beside(sheet: Sheet, rows: list[Row]) -> None:
    """No lines: the answers in a column of their own."""
    middle = WIDTH / 2 - 10
    for number, question, answer in rows:
        asked = sheet.lines(f"{number}) {question}", middle - sheet.margin - 20)
        answered = sheet.lines(answer, sheet.right - middle)
        sheet.make_room(max(len(asked), len(answered)) * sheet.leading)
        below = sheet.put(sheet.margin, sheet.y, asked)
        sheet.y = max(below, sheet.put(middle, sheet.y, answered)) + sheet.gap


def below(sheet: Sheet, rows: list[Row]) -> None:
    """Each question in bold, its answer below it, further in."""
    for number, question, answer in rows:
        asked = sheet.lines(f"{number}. {question}", sheet.right - sheet.margin)
        answered = sheet.lines(answer, sheet.right - sheet.margin - 15)
        sheet.make_room((len(asked) + len(answered)) * sheet.leading)
        sheet.y = sheet.put(sheet.margin, sheet.y, asked, bold=True)
        sheet.y = sheet.put(sheet.margin + 15, sheet.y, answered) + sheet.gap


def in_line(sheet: Sheet, rows: list[Row]) -> None:
    """Question and answer in one line, which may go on."""
    for number, question, answer in rows:
        colon = "" if question.endswith("?") else ":"
        lines = sheet.lines(f"{number}. {question}{colon} {answer}", sheet.right - sheet.margin)
        sheet.make_room(len(lines) * sheet.leading)
        sheet.y = sheet.put(sheet.margin, sheet.y, lines) + sheet.gap


def dotted(sheet: Sheet, rows: list[Row]) -> None:
    """Dots lead from each question to its answer."""
    left = sheet.margin + 300
    for number, question, answer in rows:
        answered = sheet.lines(answer, sheet.right - left)
        asked = f"{number}. {question} "
        dots = "." * int((285 - len(asked) * sheet.size * 0.5) / (sheet.size * 0.28))
        sheet.make_room(len(answered) * sheet.leading)
        asked_below = sheet.put(sheet.margin, sheet.y, [asked + dots])
        sheet.y = max(asked_below, sheet.put(left, sheet.y, answered)) + sheet.gap


def two_columns(sheet: Sheet, rows: list[Row]) -> None:
    """The questions in two columns of a page, each answer below its question."""
    top = sheet.y
    width = WIDTH / 2 - sheet.margin - 15
    half = (len(rows) + 1) // 2
    for left, part in ((sheet.margin, rows[:half]), (WIDTH / 2 + 10, rows[half:])):
        sheet.y = top
        for number, question, answer in part:
            sheet.y = sheet.put(left, sheet.y, sheet.lines(f"Q{number} {question}", width), True)
            sheet.y = sheet.put(left, sheet.y, sheet.lines(answer, width)) + sheet.gap


def sections(sheet: Sheet, rows: list[Row]) -> None:
    """Sections with headings, over two pages with the same head."""
    edges = [sheet.margin, WIDTH / 2 + 30, sheet.right]
    for index, (number, question, answer) in enumerate(rows):
        if index == len(rows) // 2:
            sheet.begin_page()
            sheet.y = sheet.put(sheet.margin, sheet.y, ["Result"], bold=True) + sheet.gap
        if index == 0:
            sheet.y = sheet.put(sheet.margin, sheet.y, ["Appliance"], bold=True) + sheet.gap
        sheet.row(edges, [f"{number} {question}", answer])


def boxes(sheet: Sheet, rows: list[Row]) -> None:
    """Each answer in a box below its question."""
    for number, question, answer in rows:
        asked = sheet.lines(f"{number}. {question}", sheet.right - sheet.margin)
        answered = sheet.lines(answer, sheet.right - sheet.margin - 10)
        height = max(len(answered), 1) * sheet.leading + 6
        sheet.make_room(len(asked) * sheet.leading + height)
        sheet.y = sheet.put(sheet.margin, sheet.y, asked) + 4
        sheet.ruled([sheet.margin, sheet.right], height)
        sheet.put(sheet.margin + 5, sheet.y, answered)
        sheet.y += height + sheet.gap


LAYOUTS: tuple[Callable[[Sheet, list[Row]], None], ...] = (
    table,
    three_columns,
    marks,
    beside,
    below,
    in_line,
    dotted,
    two_columns,
    sections,
    boxes,
)


def made_pdfs(count: int, seed: int) -> Iterator[MadePdf]:
    """Make so many PDFs, each layout and version as often as any other."""
    chance = random.Random(seed)
    for index in range(count):
        layout = LAYOUTS[index % len(LAYOUTS)]
        version = 1 + index // len(LAYOUTS) % len(VERSIONS)
        yield made_pdf(chance, index, layout, version)


def chosen_rows(chance: random.Random, version: int, spoiled: str | None) -> list[Row]:
    """Choose an answer to each question of a version of the form."""
    texts = list(QUESTIONS)
    answers = {}
    for place in VERSIONS[version]:
        question = texts[place]
        answers[question] = chance.choice(QUESTIONS[question])
    if spoiled == "unusual answer":
        unusual = chance.choice(("Safe, see below", "Not tested", ""))
        answers["Is the appliance safe to use?"] = unusual
    pairs = list(answers.items())
    if spoiled == "unknown question":
        pairs.insert(chance.randrange(len(pairs) + 1), (UNKNOWN, "No"))
    return [(str(number), *pair) for number, pair in enumerate(pairs, start=1)]


def made_pdf(
    chance: random.Random, index: int, layout: Callable[[Sheet, list[Row]], None], version: int
) -> MadePdf:
    kinds = [None, *SPOILED]
    spoiled = chance.choices(kinds, [1 - sum(SPOILED.values()), *SPOILED.values()])[0]
    rows = chosen_rows(chance, version, spoiled)
    head = [
        f"Version {version}",
        f"Form {5000 + index}, updated 2026-11-28T08:00:00.000Z",
        f"Job {1000 + index}: Annual service",
        f"Property {index}: {index} High Street, Anytown",
    ]
    pages = chance.choice(("Page {}", "Page {} of 2"))
    if spoiled == "scan":
        rows = []
        head = []
    sheet = Sheet(chance, head, pages)
    layout(sheet, rows)
    if spoiled == "stray note":
        y = chance.uniform(120, min(sheet.y + 60, HEIGHT - 90))
        note = chance.choice(("see invoice", "12", "Signed: A. Tenant", "No"))
        sheet.document.add_text(chance.uniform(sheet.margin, 400), y, note, size=sheet.size)
    content = sheet.document.to_bytes()
    if spoiled == "scan":
        content = content.replace(b" Tj", b"   ")
    if spoiled == "unreadable font":
        # Each letter is said to be the next one.
        encoding = b"<< /Differences [97 /%s] >>" % b"/".join(b"%c" % (98 + i) for i in range(25))
        content = content.replace(b"/Encoding /WinAnsiEncoding", b"/Encoding %s" % encoding)
    if spoiled == "damaged":
        content = content[: len(content) // 3]
    answers = []
    for number, question, answer in rows:
        if answer:
            answers.append((int(number), question, answer))
    return MadePdf(layout.__name__, version, spoiled, content, answers)


def verdict(made: MadePdf) -> str:
    """Have the reader read a PDF: right, for a person, or wrong in any answer."""
    from answer_reader import UncertainError, read_answers

    try:
        version, answers = read_answers(made.content, FORM_NAME)
    except UncertainError:
        return "for a person"
    is_right = (
        version == str(made.version) and [tuple(answer) for answer in answers] == made.answers
    )
    return "right" if is_right else "wrong"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keep the PDFs there")
    options = parser.parse_args()
    sys.path.append(str(ROOT / "example_dags"))
    counts: Counter[tuple[str, str]] = Counter()
    for index, made in enumerate(made_pdfs(options.count, options.seed)):
        result = verdict(made)
        counts[made.layout, result] += 1
        counts["all", result] += 1
        if options.folder:
            options.folder.mkdir(parents=True, exist_ok=True)
            name = f"{index:03}-{made.layout}-{made.version}-{result.replace(' ', '-')}.pdf"
            (options.folder / name).write_bytes(made.content)
    print("| layout | right | for a person | wrong |\n|---|---|---|---|")
    for name in (*(layout.__name__ for layout in LAYOUTS), "all"):
        results = [str(counts[name, result]) for result in ("right", "for a person", "wrong")]
        print(f"| {name.replace('_', ' ')} | {' | '.join(results)} |")
    return 1 if counts["all", "wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
