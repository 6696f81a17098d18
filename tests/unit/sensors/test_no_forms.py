"""Services whose response for a job without forms is no listing: a setting says what it means."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmInputError, FsmNotFoundError, FsmResponseError
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.testing import faults
from tests.unit.no_forms import ANSWERS, SETTING, NoForms
from tests.unit.sensors.conftest import Run

EACH_ANSWER = pytest.mark.parametrize("name", ANSWERS)


@pytest.fixture
def answers(service, connect):
    """Have the service answer so where there are no forms, and set what the connection says."""

    def answer(name, **settings):
        service.fail("GET", "/forms", NoForms(ANSWERS[name]), every=True)
        connect(service, max_retries=0, **settings)

    return answer


@EACH_ANSWER
def test_a_sensor_waits_in_all_modes(service, answers, run, soon, name):
    answers(name, no_forms_response=SETTING[name])
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert run(job_id=11, xcom="ids", failure_tolerance=0, timeout=300) == [900]


@EACH_ANSWER
def test_a_listing_is_empty(answers, name):
    answers(name, no_forms_response=SETTING[name])

    assert FsmListFormsOperator(task_id="list", job_id=11).execute({}) == []
    assert list(FsmHook().paginate("/forms", {"jobID": 11})) == []


@EACH_ANSWER
def test_by_default_it_is_an_error_that_names_the_setting(answers, name):
    answers(name)

    with pytest.raises((FsmNotFoundError, FsmResponseError)) as failed:
        list(FsmHook().list_forms(job_id=11))
    setting = SETTING[name]
    assert f"set no_forms_response to {setting}" in str(failed.value)


def test_by_default_a_404_fails_the_sensor_at_once(answers):
    answers("404")

    with pytest.raises(AirflowFailException, match="set no_forms_response to 404"):
        Run("poke")(job_id=11)


@pytest.mark.parametrize(("name", "setting"), [("404", "empty"), ("204", "404"), ("{}", "404")])
def test_the_setting_is_for_the_response_that_it_names(answers, name, setting):
    answers(name, no_forms_response=setting)

    with pytest.raises((FsmNotFoundError, FsmResponseError)):
        list(FsmHook().list_forms(job_id=11))


def test_a_404_of_something_else_is_an_error_with_the_setting(service, connect):
    """Of a wrong base path, of a page in the middle of a listing, and of another path."""
    connect(service, max_retries=0, no_forms_response="404")
    service.seed_forms(25)
    service.fail("GET", "/forms", faults.Status(404), call=1)
    service.fail("GET", "/forms", faults.Status(404), call=3)

    is_accepted, _ = FsmHook().test_connection()
    assert not is_accepted
    with pytest.raises(FsmNotFoundError):
        list(FsmHook().list_forms(created_since="2026-01-01"))
    with pytest.raises(FsmNotFoundError):
        list(FsmHook().paginate("/jobs/11/parts", {"jobID": 11}))


def test_another_value_of_the_setting_is_refused(service, connect):
    connect(service, no_forms_response="none")

    with pytest.raises(FsmInputError, match="'404' or 'empty'"):
        list(FsmHook().list_forms())
