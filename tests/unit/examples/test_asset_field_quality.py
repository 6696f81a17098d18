"""The report on asset fields: what is similar, what is unused, what has changed, and its page."""

import pytest

from example_dags import asset_field_quality as quality
from fsm_provider.api.models import AssetDynamicField

BOILERS = {"scope": "assetType", "fieldKey": "k", "assetTypeDescription": "Boilers"}


def field(number, name, values=(), used_by=(BOILERS,)):
    """Make a field as a snapshot holds it; its values are numbered from 1."""
    options = []
    for value_id, text in enumerate(values, 1):
        option = {"id": value_id, "name": text}
        options.append(option)
    record = AssetDynamicField.model_validate(
        {
            "dynamicFieldID": number,
            "dynamicFieldName": name,
            "usedBy": used_by,
            "values": options,
        }
    )
    return record.as_json()


@pytest.mark.parametrize(
    ("text", "other", "is_similar"),
    [
        ("Serial No.", "serial  no", True),
        ("Café", "CAFE", True),
        ("22 mm", "22mm", True),
        ("Baxi", "Baxi", True),
        ("Worcester Bosch Ltd", "Worcester Bosch", True),
        ("Vitodens 100-W", "Vitodens 200-W", False),
        ("1.5 bar", "15 bar", False),
        ("G3/4", "G34", False),
        ("A", "A+", False),
        ("Gas", "Gaz", False),
        ("Boiler type", "Boiler model", False),
    ],
)
def test_what_is_similar(text, other, is_similar):
    groups = quality.groups_alike((text, "something else", other), 0.85)

    expected = [[text, other]] if is_similar else []
    assert groups == expected


def test_a_text_that_is_like_two_groups_joins_them():
    texts = ["abcdefghij", "abcdefghijklm", "abcdefghijkl"]

    assert quality.groups_alike(texts[:2], 0.9) == []
    assert quality.groups_alike(texts, 0.9) == [texts]


def test_each_finding_is_a_row_and_fields_and_values_are_counted():
    fields = [
        field(1, "Make", ["Baxi", "BAXI", "Ideal", "baxi "]),
        field(2, "make", [], used_by=[]),
        field(3, "Make", ["Gas"], used_by=None),
        field(4, None, ["Loft", "Loft"]),
    ]
    findings = quality.findings_for(fields, 0.9)

    assert [finding.row() for finding in findings] == [
        ["similar names", "", "Make · make · Make"],
        ["unused fields", "", "make"],
        ["unused fields", "", "Make"],
        ["similar values", "Make", "Baxi · BAXI · baxi "],
        ["similar values", "(field 4 has no name)", "Loft · Loft"],
    ]
    assert quality.count_by_kind(findings) == {
        "similar_names": 3,
        "unused": 2,
        "similar_values": 5,
    }


def test_changes_are_matched_by_identifier():
    standard = {"scope": "standard", "fieldKey": "phase"}
    before = [
        field(1, "Maker", ["Baxi", "Ideal"]),
        field(2, "Fuel"),
        field(3, "Phase", ["1"], used_by=[]),
    ]
    after = [
        field(1, "Make", ["BAXI", "Ideal", "Vaillant"]),
        field(3, "Phase", [], used_by=[standard]),
        field(4, "Colour"),
    ]

    assert quality.changes_between(before, after) == [
        ["field renamed", "Make", "Maker", "Make"],
        ["value renamed", "Make", "Baxi", "BAXI"],
        ["value added", "Make", "", "Vaillant"],
        ["field removed", "Fuel", "", ""],
        ["use changed", "Phase", "", "standard"],
        ["value removed", "Phase", "1", ""],
        ["field added", "Colour", "", ""],
    ]


def test_a_day_is_compared_with_the_last_before_it(storage):
    storage.mkdir(parents=True, exist_ok=True)
    for name in ("02-27.json", "02-28.json", "02-28.html", "03-01.json", "03-02.json"):
        (storage / f"2026-{name}").write_text("[]")

    assert quality.day_before(storage, "2026-03-01") == "2026-02-28"
    assert quality.day_before(storage, "2026-02-27") is None
