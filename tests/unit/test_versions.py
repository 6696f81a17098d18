"""The matrix of versions: its tables are those of its results, and it leaves no example out."""

import json

import pytest

from tests.system.examples import EXAMPLES
from tests.versions.examples import CASES, NOT_BY_DAG_TEST, STARTED_BY_FORMS
from tests.versions.report import DOCUMENTS, RESULTS, VERSIONS, between_markers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_table_holds_what_was_measured(document):
    text = document.read_text()

    assert between_markers(text, "another table") != text
    assert between_markers(text, DOCUMENTS[document](json.loads(RESULTS.read_text()))) == text


def test_each_run_of_the_matrix_was_measured_and_no_other_is_shown():
    results = json.loads(RESULTS.read_text())

    measured = set()
    for airflow, pythons in results.items():
        for python, suites in pythons.items():
            measured |= {(airflow, python, suite) for suite in suites}
    expected = set()
    for airflow, version in VERSIONS.items():
        for python in version["pythons"]:
            suites = [*version["suites"]]
            if python == "3.11":
                suites += kills_on(airflow)
            expected |= {(airflow, python, suite) for suite in suites}
    assert measured == expected


def kills_on(airflow):
    if airflow.startswith("2."):
        return ["kills"]
    return ["kills", "watchers"]


def test_no_example_is_left_out():
    modules = {path.stem for path in EXAMPLES.glob("*.py")} - {"answer_reader"}

    run = {module for module, _ in CASES}
    assert run | {*STARTED_BY_FORMS, *NOT_BY_DAG_TEST} == modules
