"""The tables of versions are those of the results that the matrix wrote."""

import json

import pytest

from tests.versions.report import DOCUMENTS, RESULTS, between_markers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_table_holds_what_was_measured(document):
    text = document.read_text()

    assert between_markers(text, "another table") != text
    assert between_markers(text, DOCUMENTS[document](json.loads(RESULTS.read_text()))) == text
