"""The report on asset fields: what is similar, what is unused, what has changed, and its page."""

import pytest

from example_dags import asset_field_quality as quality
from fsm_provider.api.models import AssetDynamicField

BOILERS = {"scope": "assetType", "fieldKey": "k", "assetTypeDescription": "Boilers"}


def field(number, name, values=(), used_by=(BOILERS,)):
    """Make a field as a snapshot holds it; its values are numbered from 1."""
    options = [{"id": value, "name": text} for value, text in enumerate(values, 1)]
    given = {"dynamicFieldID": number, "dynamicFieldName": name, "usedBy": used_by, "values": options}
    return AssetDynamicField.model_validate(given).as_json()


def similar(*texts, likeness=0.9):
    return quality.groups_alike(texts, likeness)


class TestSimilar:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Serial No.", "serial  no"),
            ("Glow-worm", "Glowworm"),
            ("Café", "CAFE"),
            ("22 mm", "22mm"),
            ("Baxi", "Baxi"),
            ("Vaillant", "Vailant"),
            ("Worcester Bosch Ltd", "Worcester Bosch"),
        ],
    )
    def test_these_are(self, one, other):
        assert similar(one, "something else", other, likeness=0.85) == [[one, other]]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Phase 1", "Phase 2"),
            ("Vitodens 100-W", "Vitodens 200-W"),
            ("1.5 bar", "15 bar"),
            ("G3/4", "G34"),
            ("A+", "A++"),
            ("A", "A+"),
            ("Gas", "Gaz"),
            ("Boiler type", "Boiler model"),
        ],
    )
    def test_these_are_not(self, one, other):
        assert similar(one, other) == []

    def test_one_that_is_like_two_groups_joins_them(self):
        texts = ["abcdefghij", "abcdefghijklm", "abcdefghijkl"]

        assert similar(*texts[:2]) == []
        assert similar(*texts) == [["abcdefghij", "abcdefghijklm", "abcdefghijkl"]]


class TestFindings:
    FIELDS = (
        field(1, "Make", ["Baxi", "BAXI", "Ideal", "baxi "]),
        field(2, "make", [], []),
        field(3, "Make", ["Gas"], None),
        field(4, None, ["Loft", "Loft"]),
    )

    @pytest.fixture
    def findings(self):
        return quality.findings_for(list(self.FIELDS), 0.9)

    def test_each_is_a_row(self, findings):
        assert [finding.row() for finding in findings] == [
            ["similar names", "", "Make · make · Make"],
            ["unused fields", "", "make"],
            ["unused fields", "", "Make"],
            ["similar values", "Make", "Baxi · BAXI · baxi "],
            ["similar values", "(field 4 has no name)", "Loft · Loft"],
        ]

    def test_fields_and_values_are_counted(self, findings):
        assert quality.count_by_kind(findings) == {"similar_names": 3, "unused": 2, "similar_values": 5}


class TestChanges:
    def test_changes_are_matched_by_identifier(self):
        before = [field(1, "Maker", ["Baxi", "Ideal"]), field(2, "Fuel"), field(3, "Phase", ["1"], [])]
        after = [
            field(1, "Make", ["BAXI", "Ideal", "Vaillant"]),
            field(3, "Phase", [], [{"scope": "standard", "fieldKey": "phase"}]),
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
    for name in (
        "2026-02-27.json",
        "2026-02-28.json",
        "2026-02-28.html",
        "2026-03-01.json",
        "2026-03-02.json",
    ):
        (storage / name).write_text("[]")

    assert quality.day_before(storage, "2026-03-01") == "2026-02-28"
    assert quality.day_before(storage, "2026-02-27") is None
