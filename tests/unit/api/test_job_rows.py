"""Jobs from rows as people have them: the cells of CSV files, databases and DataFrames."""

import csv
import io
import json
from decimal import Decimal

import pyarrow
import pytest

from fsm_provider.api import FsmInputError, jobs_from_rows
from fsm_provider.api.job_rows import MAX_PROBLEMS

COLUMNS = {"customerReference": "reference", "quotedAmount": "amount", "notes": "notes"}
WANTED = {"property_id": 7, "key": "PM-1", "job": {"customerReference": "PM-1", "quotedAmount": "99.5"}}


class DataFrame:
    """What pandas gives: a list by ``to_dict("records")``, integers with gaps as floats, NaN for nothing."""

    def __init__(self, records):
        self.records = records

    def to_dict(self, orient):
        assert orient == "records"
        return self.records

    def __iter__(self):
        raise AssertionError("iterating a DataFrame gives its columns")


class Polars:
    def __init__(self, records):
        self.to_dicts = lambda: records


class Scalar:
    """A number of NumPy."""

    def __init__(self, number):
        self.item = lambda: number


def jobs(rows, columns=COLUMNS):
    return jobs_from_rows(rows, key="reference", property_id="property", map=columns)


def row(**cells):
    return {"reference": "PM-1", "property": 7, "amount": "99.5", "notes": "", **cells}


TABLES = {
    "mappings": [row()],
    "generator": (one for one in [row()]),
    "DataFrame": DataFrame([row(property=7.0, amount=99.5, notes=float("nan"))]),
    "Polars": Polars([row(notes=None)]),
    "Arrow": pyarrow.Table.from_pylist([row(amount=99.5)]),
    "database": [row(amount=Decimal("99.5"), notes=None)],
    "NumPy": [row(property=Scalar(7), amount=Scalar(99.5), notes=Scalar(float("nan")))],
}


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_the_same_job_whatever_it_comes_from(table):
    made = jobs(TABLES[table])

    assert made == [WANTED]
    assert json.loads(json.dumps(made)) == made


def test_a_csv_file():
    text = "reference,property,amount,notes,other\nPM-1,7.0,99.5,,x\n PM-2 ,8,None,no access,\n"

    assert jobs(csv.DictReader(io.StringIO(text))) == [
        {**WANTED, "property_id": "7"},
        {"property_id": "8", "key": "PM-2", "job": {"customerReference": "PM-2", "notes": "no access"}},
    ]


@pytest.mark.parametrize(
    "cell", [None, "", "  ", "None", "nan", "NaN", float("nan"), Decimal("NaN"), "NaT", "<NA>"]
)
def test_a_field_without_a_value_is_not_sent(cell):
    (job,) = jobs([row(amount=cell, notes=cell)])

    assert job["job"] == {"customerReference": "PM-1"}


@pytest.mark.parametrize("cell", [None, "", "None", float("nan")])
@pytest.mark.parametrize("column", ["reference", "property"])
def test_a_row_needs_a_key_and_a_property(column, cell):
    with pytest.raises(FsmInputError, match=f"^row 1: {column}: is empty$"):
        jobs([row(**{column: cell})], {})


@pytest.mark.parametrize(
    ("cell", "sent"),
    [
        (120, 120),
        (120.0, 120),
        (99.5, "99.5"),
        (1e-05, "0.00001"),
        (Decimal("120.00"), "120.00"),
        ("7.0", "7.0"),
    ],
)
def test_amounts(cell, sent):
    (job,) = jobs([row(amount=cell)])

    assert job["job"]["quotedAmount"] == sent


@pytest.mark.parametrize(
    ("amount", "problem"),
    [
        (0.1 + 0.2, "amount: has more than 6 decimals: round it"),
        (float("inf"), "amount: is infinite"),
        ("12,50", "amount: should be an amount such as '120' or '99.50', as text or Decimal"),
        (-3, "amount: should be an amount such as '120' or '99.50', as text or Decimal"),
        (True, "amount: Input should be a valid string"),
    ],
)
def test_an_amount_that_is_none(amount, problem):
    with pytest.raises(FsmInputError) as refused:
        jobs([row(amount=amount)])

    assert str(refused.value) == f"row 1: {problem}"


@pytest.mark.parametrize(
    ("field", "cell", "sent"),
    [
        ("businessUnitID", 7.0, 7),
        ("businessUnitID", "7.0", "7"),
        ("business_unit_id", 7, 7),
        ("customerContactID", 7.0, 7),
        ("customerReference", "7.0", "7.0"),
        ("customer_reference", 7.0, 7),
        ("notes", 7.0, "7"),
        ("notes", 2.5, "2.5"),
        ("priority", 1, "1"),
    ],
)
def test_a_number_fits_its_field(field, cell, sent):
    (job,) = jobs([row(cell=cell)], {field: "cell"})

    assert list(job["job"].values()) == [sent]


def test_a_key_is_text_as_it_is_written():
    first, second = jobs([row(reference=7.0), row(reference="7.0")], {})

    assert (first["key"], second["key"]) == ("7", "7.0")


def test_a_field_that_is_not_specified():
    (job,) = jobs([row(tenant="x")], {"extra_fields.tenantName": "tenant"})

    assert job["job"] == {"extra_fields": {"tenantName": "x"}}


def test_every_mistake_of_every_row_is_named_at_once():
    rows = [row(), row(reference="", property="a b"), row(), row(reference="PM-4", amount="x", notes=["y"])]

    with pytest.raises(FsmInputError) as refused:
        jobs(rows)

    first, second, third = str(refused.value).split("\n")
    assert first.startswith("row 2: reference: is empty; property: is not an identifier")
    assert second == "row 3: reference: is the same as in row 1"
    assert third.startswith("row 4: notes: ")
    assert "; amount: should be" in third


def test_a_long_list_of_mistakes_ends():
    with pytest.raises(FsmInputError) as refused:
        jobs([row(property="") for _ in range(MAX_PROBLEMS + 3)])

    assert str(refused.value).split("\n")[MAX_PROBLEMS:] == ["and 3 more rows"]


@pytest.mark.parametrize(
    ("rows", "columns", "problem"),
    [
        ("a,b", {}, "rows: should be mappings, such as a csv.DictReader, or a DataFrame, not str"),
        (row(), {}, "rows: should be mappings, such as a csv.DictReader, or a DataFrame, not dict"),
        (7, {}, "rows: should be mappings, such as a csv.DictReader, or a DataFrame, not int"),
        ([("PM-1", 7)], {}, "rows: row 1 should be a mapping from column to cell, not tuple"),
        (
            [{"reference": "PM-1", "Property": 7}],
            {},
            "row 1: there is no column property, only reference, Property",
        ),
        ([{**row(), None: ["x"]}], {}, "row 1: has more cells than there are columns"),
        (
            [row()],
            {"customerRef": "reference"},
            "map: a job has no field 'customerRef'; if the service has one, use 'extra_fields.customerRef'",
        ),
        (
            [row()],
            {"extra_fields": "reference"},
            "map: a job has no field 'extra_fields'; if the service has one, use 'extra_fields.extra_fields'",
        ),
    ],
)
def test_what_is_no_table(rows, columns, problem):
    with pytest.raises(FsmInputError) as refused:
        jobs(rows, columns)

    assert str(refused.value) == problem


def test_a_cell_is_not_quoted_in_an_error():
    with pytest.raises(FsmInputError) as refused:
        jobs([row(property="canary {x}", amount="canary")])

    assert "canary" not in str(refused.value)
