"""Where the PDF of a form goes."""

from urllib.parse import unquote

import pytest

from fsm_provider.api import Form
from fsm_provider.transfers.pdf_paths import PathTemplate

TIME = "2026-03-01T12:00:00Z"
VERSION = "2026-03-01T120000.000000Z"


def path_for(text, **fields):
    return PathTemplate(text).path_for(
        Form.model_validate({"id": 5001, "lastUpdatedOnDateTime": TIME, **fields})
    )


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("7", "7"),
        ("x" * 100, "x" * 100),
        ("a/b!", "a%2Fb%21"),
        ("..", "%2E%2E"),
        ("\u5bb6" * 11, "%E5%AE%B6" * 11),
    ],
)
def test_a_value_that_is_not_too_long_is_written_as_it_always_was(value, name):
    assert (
        path_for("{property_id}/{form_id}/v={version}.pdf", propertyID=value)
        == f"{name}/5001/v={VERSION}.pdf"
    )


def test_values_that_begin_alike_have_paths_of_their_own():
    values = ["\u5bb6" * 40, "\u5bb6" * 39 + "\u5c4b", "x" * 101, "x" * 102, "x" * 99 + "/"]
    values += [unquote(path_for("{property_id}/{form_id}-{version}", propertyID=values[0]).partition("/")[0])]

    names = [
        path_for("{property_id}/{form_id}-{version}", propertyID=value).partition("/")[0] for value in values
    ]

    assert len(set(names)) == len(values)
    assert max(map(len, names)) == 100
    for name in names:
        unquote(name.partition("!")[0], errors="strict" if "x" in name else "replace")
        assert "%" not in name.partition("!")[0][-2:]
