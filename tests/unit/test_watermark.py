"""How far a DAG that lists at intervals has come, run after run."""

from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider import watermark
from fsm_provider.api.errors import FsmInputError
from tests.unit.supervisor import supervised

NAME = "my_dag"
LOOK_BACK = timedelta(hours=2)


@pytest.fixture
def variables():
    with supervised() as running:
        yield running.variables


def since_for(begun):
    return datetime.fromisoformat(begun["since"])


def test_the_first_run_begins_a_look_back_before_itself(variables):
    before = datetime.now(UTC)

    begun = watermark.begin(NAME, LOOK_BACK)

    assert before - LOOK_BACK <= since_for(begun) <= datetime.now(UTC) - LOOK_BACK


def test_runs_that_fail_go_on_from_the_last_that_succeeded(variables):
    first = watermark.begin(NAME, LOOK_BACK)
    again = watermark.begin(NAME, LOOK_BACK)
    watermark.commit(NAME, again["now"])

    third = watermark.begin(NAME, LOOK_BACK)

    assert again["since"] == first["since"]
    assert since_for(third) == datetime.fromisoformat(again["now"]) - LOOK_BACK


def test_a_cleared_run_does_not_move_the_watermark_back(variables):
    earlier, later = watermark.begin(NAME, LOOK_BACK), watermark.begin(NAME, LOOK_BACK)
    watermark.commit(NAME, later["now"])

    watermark.commit(NAME, earlier["now"])

    assert variables[NAME] == later["now"]


def test_what_is_no_time_is_named(variables):
    variables[NAME] = "soon"

    with pytest.raises(FsmInputError, match="Variable my_dag: 'soon' is no ISO 8601 time"):
        watermark.begin(NAME, LOOK_BACK)
