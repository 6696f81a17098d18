"""Visits from answers: which findings there are, under which key, and with which deadline."""

from datetime import timedelta

import pytest
from answer_reader import QUESTIONS, Answer

from example_dags import remedial_from_answers as remedial
from tests.capabilities import DEADLINES

FORM = {
    "id": 5001,
    "formName": "Gas Safety Record",
    "propertyID": "7",
    "jobID": 21,
    "createdOnDateTime": "2026-03-01T08:00:00.000Z",
}


def answers(**changed):
    """Make the answers to the questions of the findings, and what was found."""
    said = {
        "Is the appliance safe to use?": "Safe",
        "Is the flue clear, and does it end in a safe place?": "Yes",
        "Defects that were found": "None",
        **changed,
    }
    return [Answer(number, *pair) for number, pair in enumerate(said.items(), start=1)]


def test_a_form_without_findings_has_no_visit():
    assert remedial.visits_for(FORM, answers()) == []


def test_each_finding_is_a_visit_with_a_key_of_form_and_question():
    changed = {
        "Is the appliance safe to use?": "Unsafe",
        "Is the flue clear, and does it end in a safe place?": "No",
        "Defects that were found": "Bird's nest.",
    }

    urgent, other = remedial.visits_for(FORM, answers(**changed))

    assert urgent == {
        "trigger_dag_id": "visit_in_24_hours",
        "trigger_run_id": "REM-5001-SAFE",
        "conf": {
            "key": "REM-5001-SAFE",
            "property_id": "7",
            "notes": (
                "Gas Safety Record 5001 of 2026-03-01T08:00:00.000Z, job 21: "
                '"Is the appliance safe to use? Unsafe". Defects that were found: "Bird\'s nest.".'
            ),
        },
    }
    assert other["trigger_dag_id"] == "visit_in_28_days"
    assert other["trigger_run_id"] == other["conf"]["key"] == "REM-5001-FLUE"


def test_each_finding_is_a_question_and_an_answer_that_the_reader_knows():
    for finding in remedial.FINDINGS:
        patterns = [known.get(finding.question, "") for known in QUESTIONS.values()]
        assert any(finding.answer in pattern.split("|") for pattern in patterns), finding
        assert finding.visit in remedial.VISITS
    codes = [finding.code for finding in remedial.FINDINGS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("interval", remedial.VISITS.values(), ids=str)
def test_airflow_mails_the_office_at_the_deadline_where_it_can(interval):
    arguments = remedial.with_deadline(interval)

    if not DEADLINES.is_there:
        assert arguments == {}
        return
    assert arguments["deadline"].interval == interval
    assert interval in (timedelta(hours=24), timedelta(days=28))
    assert arguments["deadline"].callback.kwargs["to"] == "office@example.com"
