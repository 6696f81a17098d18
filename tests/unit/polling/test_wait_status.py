"""What the log says of a wait."""

from datetime import timedelta
from functools import partial

import pytest

from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.wait_status import WaitStatus, target_for
from tests.unit.polling.references import DAY, NOON, reference


def status(names=("Gas",), minimum_forms=1, others=(), **wanted):
    return WaitStatus(
        target=partial(
            target_for,
            FormFilter(**wanted),
            FormCriteria(form_names=tuple(names), minimum_forms=minimum_forms),
        ),
        began=DAY,
        until=None,
        others=others,
    )


@pytest.mark.parametrize(
    ("names", "minimum_forms", "text"),
    [
        ((), 1, "a form"),
        ((), 3, "3 forms"),
        (["Gas", "Oil"], 2, "Gas, Oil"),
        (["Gas", "Oil"], 3, "3 forms named Gas, Oil"),
        (list("ABCDEFG"), 1, "A, B, C, D, E and 2 more"),
    ],
)
def test_the_forms_that_are_waited_for(names, minimum_forms, text):
    assert status(names, minimum_forms).target() == text


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([], ""),
        (["Oil"], "1 other form since then: Oil"),
        ([*"FEDCBA", "F"], "7 other forms since then: F (2), A, B, C, D and 1 more"),
        (["Oil\nboiler", ""], "2 other forms since then: 'Oil\\nboiler', (no name)"),
        (["Oil\x1b[31m", 5, ["x"]], "3 other forms since then: 'Oil\\x1b[31m', 5, ['x']"),
        (["x" * 1000], f"1 other form since then: {'x' * 80}"),
    ],
)
def test_other_forms_are_named_within_bounds(others, text):
    assert status(others=others).other_forms() == text


def wait(**wanted):
    return FormWait(FormFilter(created_since=DAY, **wanted), FormCriteria(form_names=("Gas",)))


def test_a_wait_knows_the_forms_under_other_names():
    waiting = wait(job_id=21)
    elsewhere = reference(3, job=22, name="Elsewhere")

    waiting.find([reference(1, name="Oil"), reference(2, name=None), elsewhere, reference(4)], 0.0)

    assert waiting.others == {1: "Oil", 2: ""}
    assert list(waiting.found) == [4]


def test_a_form_that_is_renamed_moved_or_gone_is_no_longer_another():
    waiting = wait(job_id=21)
    waiting.find([reference(number, name="Oil") for number in range(4)], 0.0)

    assert not waiting.add(reference(0, name="Oil", updated=NOON + timedelta(hours=1)))
    assert waiting.add(reference(0, name="Gas"))
    assert waiting.add(reference(1, name="Oil", job=22))
    assert waiting.others == {2: "Oil", 3: "Oil"}

    others = waiting.others.values()
    waiting.find([reference(0, name="Gas"), reference(3, name="Oil")], 0.0)
    assert list(others) == ["Oil"]


def test_a_form_that_comes_under_another_name_is_a_difference():
    assert wait(property_id=7).add(reference(1, name="Oil"))


def test_a_wait_on_the_entire_account_keeps_no_other_forms():
    waiting = wait()

    assert not waiting.add(reference(1, name="Oil"))
    assert waiting.others == {}
