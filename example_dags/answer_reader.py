"""Read the answers in the PDF of a form, or say why a person has to.

Put this file beside the DAGs that import it, and write your own forms into ``QUESTIONS``. A form is
read as a whole or not at all: each text in the PDF has to be a numbered question, an answer that
its question can have, or one of the other texts below. Anything else is uncertain. So is a scan,
which has no text. Needs ``pdfplumber``.
"""

from __future__ import annotations

import re
from io import BytesIO
from itertools import pairwise
from typing import Any, NamedTuple

YES_NO = "Yes|No|N/A"
SAFE = "Safe|Unsafe"
QUESTIONS = {
    "Gas Safety Record": {
        "Make and model of the appliance": ".+",
        "Where is the appliance?": ".+",
        "Is the flue clear, and does it end in a safe place?": YES_NO,
        "Is a carbon monoxide alarm fitted?": YES_NO,
        "Operating pressure in mbar": r"\d+(\.\d+)?",
        "Is the appliance safe to use?": SAFE,
        "Defects that were found": ".+",
        "Date of the check": r"\d{4}-\d\d-\d\d",
        "Remarks": ".*",  # may be left open
    },
    "Warning Notice": {
        "Make and model of the appliance": ".+",
        "Is the appliance safe to use?": SAFE,
        "How dangerous is it?": "At Risk|Immediately Dangerous",
        "Defects that were found": ".+",
        "Is the appliance disconnected?": YES_NO,
        "Was the gas supplier told?": YES_NO,
    },
    "Job Sign-off": {
        "Is the work complete?": YES_NO,
        "Is the site clean?": YES_NO,
        "Name of who signs": ".+",
        "Remarks": ".*",  # may be left open
    },
}
"""The questions of each form in all its versions, and the pattern that an answer matches."""
HEAD = "|".join(
    [
        *QUESTIONS,
        r"Version \w+",
        r"Form \d+, updated \S+",
        r"Job \d+: .*",
        r"Property \d+: .*",
        "Engineer: .*",
        YES_NO,  # headings of columns
    ]
)
"""Pattern of what else is above the first question of a page."""
FOOT = r"Page \d+( of \d+)?"
"""Pattern of what else is at the foot of a page."""
FOOT_HEIGHT = 60
"""In points."""
SECTIONS = ("Appliance", "Result")
"""Headings in bold between questions."""
NUMBER = r"Q?(\d{1,2})[.):]?\s+"
NUMBER_WIDTH = 40
"""How far a question may be to the right of its number, in points."""
FILLER = r"(?=\s|:|\.{3}|_{3}|$) *(?::|\.{3,}|_{3,})? *\n?"
"""What leads from a question to its answer."""
WHOLE_LINES = {"keep_blank_chars": True, "use_text_flow": True, "extra_attrs": ["fontname"]}
"""With blanks kept, a "word" ends at a wide gap. By the flow, two that overlap are not mixed."""
INDENT = 2
"""How far, in points, lines may begin beside each other and are yet below each other."""
ODD = rf"(?:^|\n)\S*\n|-\n|\n{NUMBER}|\(cid:"
"""In an answer: a line of one word, which may be a part of one; a line that ends with a hyphen,
which may be of the word or not; a number that may be of a question; a letter without a name."""
MARK = "X"
"""Stands for the heading of its column."""


class UncertainError(Exception):
    """It is not certain what the PDF says."""


class Answer(NamedTuple):
    number: int
    question: str
    answer: str


class Line(NamedTuple):
    """A line of text, or the part of it up to a wide gap; lengths are in points."""

    page: int
    text: str
    left: int
    middle: float
    top: float
    height: float
    font: str
    is_in_foot: bool
    row: float
    """Where its row begins: in a ruled table that of its cell, else ``top``."""


class Reply(NamedTuple):
    """A question, and what was answered."""

    question: str
    asked: list[Line]
    texts: list[str]
    """Of the lines of the answer."""
    lines: list[Line]
    """Those of the answer; the first of them may be the last of the question."""

    def begins_beside(self) -> bool:
        """Return whether it begins in the line in which the question ends."""
        return bool(self.lines) and self.lines[0] is self.asked[-1]

    def own_lines(self) -> list[Line]:
        """Return the lines that have nothing of the question."""
        return self.lines[1:] if self.begins_beside() else self.lines


def read_answers(pdf: bytes, form_name: str) -> tuple[str | None, list[Answer]]:
    """Return the version of the form, if it names one, and what is answered.

    :raises UncertainError: if anything is uncertain.
    """
    questions = QUESTIONS.get(form_name)
    if questions is None:
        raise UncertainError(f"the questions of {form_name!r} are not known")
    lines, others = in_order(lines_in(pdf), questions)
    replies = replies_in(lines, questions)
    check_column(replies)

    answers = []
    for number, reply in enumerate(replies, start=1):
        check_block(reply)
        answer = " ".join(reply.texts)
        if answer == MARK:
            answer = heading_above(reply.lines[0], others)
        if not re.fullmatch(questions[reply.question], answer):
            raise UncertainError(f"{reply.question!r} cannot be answered by {answer!r}")
        if answer:
            answers.append(Answer(number, reply.question, answer))
    return version_in(others), answers


def replies_in(lines: list[Line], questions: dict[str, str]) -> list[Reply]:
    """Split the text at the questions, which are numbered from 1."""
    text = "\n".join(line.text for line in lines)
    # A question may go over two lines.
    known = "|".join(map(re.escape, questions)).replace(r"\ ", r"\s+")
    starts = list(re.finditer(f"^{NUMBER}({known}){FILLER}", text, re.MULTILINE))
    if not starts:
        raise UncertainError("there is no question that is known")
    ends = [start.start() for start in starts[1:]] + [len(text)]
    replies = []
    for start, end in zip(starts, ends, strict=True):
        question = " ".join(start[2].split())
        asked = lines_between(lines, text, start.start(), start.end(2))
        answer = text[start.end() : end].strip()
        if answer:
            answered = lines_between(lines, text, start.end(), start.end() + len(answer))
            replies.append(Reply(question, asked, answer.split("\n"), answered))
        else:
            replies.append(Reply(question, asked, [], []))

    numbers = [int(start[1]) for start in starts]
    is_complete = numbers == list(range(1, len(starts) + 1)) and starts[0].start() == 0
    is_each_once = len({reply.question for reply in replies}) == len(replies)
    if not is_complete or not is_each_once:
        raise UncertainError("not each numbered text is a question that is known")
    return replies


def lines_between(lines: list[Line], text: str, start: int, end: int) -> list[Line]:
    """Return the lines that a part of the text is in."""
    return lines[text.count("\n", 0, start) : text.count("\n", 0, end) + 1]


def check_column(replies: list[Reply]) -> None:
    """Check that all answers begin equally far from the left edge of their questions."""
    distances = set()
    for reply in replies:
        if reply.texts == [MARK]:
            continue
        if reply.begins_beside():
            # It goes on where the question begins.
            distances.add(0)
        for line in reply.own_lines():
            distances.add(line.left - reply.asked[0].left)
    if distances and max(distances) - min(distances) > INDENT:
        raise UncertainError("not all answers begin below each other")


def check_block(reply: Reply) -> None:
    """Check that an answer is one block of text, beside its question or below it."""
    if not reply.lines:
        return
    first = reply.lines[0]
    lowest = reply.asked[-1].top + 2.2 * first.height
    is_near = reply.asked[0].top - 3 <= first.top <= lowest or first.row == reply.asked[0].row
    is_block = True
    for above, below in pairwise(reply.lines):
        is_alike = above.font == below.font and abs(above.height - below.height) < 1
        is_block = is_block and is_alike and 2 < below.top - above.top < 1.7 * above.height
    text = "\n".join(reply.texts)
    if not is_near or not is_block or re.search(ODD, text):
        raise UncertainError(f"where the answer to {reply.question!r} ends: {text!r}")


def version_in(others: list[Line]) -> str | None:
    """Return the version that is named above the questions."""
    for other in others:
        match = re.fullmatch(r"Version (\w+)", other.text)
        if match:
            return match[1]
    return None


def heading_above(mark: Line, others: list[Line]) -> str:
    """Return the heading of the column that a mark is in."""
    headings = []
    for other in others:
        is_above = other.page == mark.page and abs(other.middle - mark.middle) < 10
        if is_above:
            headings.append(other.text)
    return headings[0] if len(headings) == 1 else MARK


def in_order(lines: list[Line], questions: dict[str, str]) -> tuple[list[Line], list[Line]]:
    """Return questions and answers as one reads them, and what is above or below them.

    :raises UncertainError: if a text belongs to no question, and is not known either.
    """
    starts = [line for line in lines if begins_question(line.text, questions)]
    ordered = []
    others = []
    for line in lines:
        above = []
        for start in starts:
            is_left = start.left <= line.left + NUMBER_WIDTH
            if start.page == line.page and start.row <= line.row + 2 and is_left:
                above.append(start)
        is_foot = line.is_in_foot and re.fullmatch(FOOT, line.text)
        is_head = not above and re.fullmatch(HEAD, line.text)
        is_section = line.text in SECTIONS and "Bold" in line.font
        if is_foot or is_head or is_section:
            others.append(line)
        elif above:
            start = max(above, key=lambda start: (start.left, start.row))
            is_below = 0 <= line.left - start.left <= NUMBER_WIDTH
            column = start.left if is_below else line.left
            place = (line.page, start.left, start.row, column, line.top, line.left)
            ordered.append((*place, line))
        else:
            raise UncertainError(f"page {line.page}: {line.text!r} belongs to no question")
    return [line for *_, line in sorted(ordered)], others


def begins_question(text: str, questions: dict[str, str]) -> bool:
    """Return whether a text is a question, or the first line of one."""
    text = re.sub(f"^{NUMBER}", "", text)
    is_long = len(text) > 5
    return is_long and any(text.startswith(known) or known.startswith(text) for known in questions)


def lines_in(pdf: bytes) -> list[Line]:
    """Return the lines of all pages."""
    import pdfplumber

    lines = []
    try:
        with pdfplumber.open(BytesIO(pdf)) as document:
            for page in document.pages:
                lines.extend(lines_of(page))
    except Exception as error:  # whatever a damaged file leads to
        raise UncertainError(f"the PDF cannot be read: {error!r}") from error
    return lines


def lines_of(page: Any) -> list[Line]:
    """Return the lines of a page."""
    cells = [cell for table in page.find_tables() for cell in table.cells]
    lines = []
    for word in page.extract_words(**WHOLE_LINES):
        middle = (word["x0"] + word["x1"]) / 2
        row = word["top"]
        for left, top, right, bottom in cells:
            if left < middle < right and top < word["top"] < bottom:
                row = top
        line = Line(
            page=page.page_number,
            text=" ".join(word["text"].split()),
            left=round(word["x0"]),
            middle=middle,
            top=word["top"],
            height=word["bottom"] - word["top"],
            font=word["fontname"],
            is_in_foot=word["top"] > page.height - FOOT_HEIGHT,
            row=row,
        )
        lines.append(line)
    return lines
