"""What the PDF of a form shows: questions and answers, in versions of the form and in layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Layout: TypeAlias = Literal["table", "list"]
Version: TypeAlias = Literal[1, 2]


class Question(NamedTuple):
    """A question of a form, and how it is answered unless something else is asked for.

    :param usual: the answer; ``{day}`` stands for the day on which the form was completed.
    :param versions: those of the form that have the question.
    """

    text: str
    usual: str
    versions: tuple[int, ...] = (1, 2)


QUESTIONS: Mapping[str, tuple[Question, ...]] = {
    "Gas Safety Record": (
        Question("Make and model of the appliance", "Worcester Greenstar 30i"),
        Question("Where is the appliance?", "Kitchen"),
        Question("Is the flue clear, and does it end in a safe place?", "Yes"),
        Question("Is a carbon monoxide alarm fitted?", "Yes", versions=(2,)),
        Question("Operating pressure in mbar", "20.1", versions=(1,)),
        Question("Is the appliance safe to use?", "Safe"),
        Question("Defects that were found", "None"),
        Question("Date of the check", "{day}"),
    ),
    "Warning Notice": (
        Question("Make and model of the appliance", "Baxi Duo-tec 24"),
        Question("Is the appliance safe to use?", "Unsafe"),
        Question("How dangerous is it?", "At Risk"),
        Question("Defects that were found", "The flue is not sealed where it leaves the wall."),
        Question("Is the appliance disconnected?", "Yes"),
        Question("Was the gas supplier told?", "No", versions=(2,)),
    ),
    "Job Sign-off": (
        Question("Is the work complete?", "Yes"),
        Question("Is the site clean?", "Yes", versions=(2,)),
        Question("Name of who signs", "A. Tenant"),
        Question("Remarks", ""),
    ),
}
"""By the name of the form, in their order."""
OTHER_QUESTIONS = (
    Question("Was the work done as planned?", "Yes"),
    Question("Is another visit needed?", "No", versions=(2,)),
    Question("Remarks", "None"),
)
"""Those of a form of any other name."""


@dataclass(frozen=True)
class FormPdf:
    """What the PDF of a form shows.

    :param layout: ``table``: a ruled table, with each answer beside its question; ``list``: each
        answer below its question.
    :param version: that of the form. Version 2 of each form has a question that version 1 lacks,
        and the Gas Safety Record of version 2 lacks one.
    :param answers: answers by question, instead of the usual ones; ``""`` leaves it open. A form
        that does not have the question is as usual.
    :raises ValueError: if no form has a question, layout or version.
    """

    layout: Layout = "table"
    version: Version = 1
    answers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout must be one of {get_args(Layout)}, not {self.layout!r}")
        if self.version not in get_args(Version):
            raise ValueError(f"version must be one of {get_args(Version)}, not {self.version!r}")
        known = questions_of_all_forms()
        for question in self.answers:
            if question not in known:
                listed = "; ".join(known)
                raise ValueError(f"no form has the question {question!r}, only: {listed}")

    def answers_of(self, form: Mapping[str, Any]) -> dict[str, str]:
        """Return the answer to each question of a form's record, in their order."""
        day = str(form.get("createdOnDateTime"))[:10]
        answers = {}
        for question in QUESTIONS.get(str(form["formName"]), OTHER_QUESTIONS):
            if self.version in question.versions:
                usual = question.usual.replace("{day}", day)
                answers[question.text] = self.answers.get(question.text, usual)
        return answers


def questions_of_all_forms() -> list[str]:
    """Return each question of any form once."""
    texts: dict[str, None] = {}
    for questions in (*QUESTIONS.values(), OTHER_QUESTIONS):
        for question in questions:
            texts[question.text] = None
    return list(texts)


USUAL = FormPdf()
