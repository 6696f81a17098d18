"""Jobs from rows as people have them: the cells of CSV files, databases and DataFrames."""

import csv
import io
import json
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy
import pandas
import polars
import pyarrow
import pytest
import sqlalchemy

from fsm_provider.api import FsmInputError, jobs_from_rows
from fsm_provider.api.job_rows import MAX_LISTED, MAX_PROBLEMS

COLUMNS = {"customerReference": "reference", "quotedAmount": "amount", "notes": "notes"}
WANTED = {"property_id": 7, "key": "PM-1", "job": {"customerReference": "PM-1", "quotedAmount": "99.5"}}


def jobs(rows, columns=COLUMNS):
    return jobs_from_rows(rows, key="reference", property_id="property", map=columns)


def row(**cells):
    return {"reference": "PM-1", "property": 7, "amount": "99.5", "notes": "", **cells}


def frame(library=pandas, **columns):
    """Return a DataFrame; each column is a list, and those that are not given have suitable cells."""
    size = max(map(len, columns.values()), default=1)
    keys = [f"PM-{number + 1}" for number in range(size)]
    cells = {"reference": keys, "property": [7] * size, "amount": ["99.5"] * size, "notes": [""] * size}
    return library.DataFrame({**cells, **columns})


def error_of(rows, columns=COLUMNS):
    with pytest.raises(FsmInputError) as refused:
        jobs(rows, columns)
    return str(refused.value)


def sqlite_rows(query):
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute(query).fetchall()


def sqlalchemy_rows(query):
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        return connection.execute(sqlalchemy.text(query)).mappings().all()


QUERY = "select 'PM-1' as reference, 7 as property, 99.5 as amount, null as notes"
TABLES = {
    "mappings": [row()],
    "generator": (one for one in [row()]),
    "pandas": frame(property=[7.0], amount=[99.5], notes=[float("nan")]),
    "pandas, nullable": frame(property=[7.0], amount=[99.5], notes=[None]).convert_dtypes(),
    "pandas, Arrow": frame(amount=[99.5], notes=[None]).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, objects": frame(notes=[None]).astype(object),
    "pandas, categories": frame().astype("category"),
    "pandas, CSV": pandas.read_csv(io.StringIO("reference,property,amount,notes\nPM-1,7,99.5,\n")),
    "Series": [one for _, one in frame().iterrows()],
    "Polars": frame(polars, amount=[99.5], notes=[None]),
    "Polars, NaN": frame(polars, property=[7.0], notes=[float("nan")]),
    "Polars, categories": frame(polars).with_columns(polars.col("reference").cast(polars.Categorical)),
    "Polars, Decimal": frame(polars, amount=[Decimal("99.5")]),
    "Arrow": pyarrow.Table.from_pylist([row(amount=99.5)]).to_pylist(),
    "database": [row(amount=Decimal("99.5"), notes=None)],
    "sqlite3": sqlite_rows(QUERY),
    "SQLAlchemy": sqlalchemy_rows(QUERY),
    "NumPy": [
        row(
            reference=numpy.str_("PM-1"),
            property=numpy.int64(7),
            amount=numpy.float64(99.5),
            notes=numpy.datetime64("NaT"),
        )
    ],
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
        (True, "amount: should be text or a number, not bool"),
        (Decimal("Infinity"), "amount: is infinite"),
        ("1,000.00", "amount: should be an amount such as '120' or '99.50', as text or Decimal"),
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


@pytest.mark.parametrize(
    ("cell", "key"),
    [(7.0, "7"), ("7.0", "7"), (Decimal("7.0"), "7"), ("007", "007"), ("1.10", "1.10"), ("12E5", "12E5")],
)
def test_keys(cell, key):
    (job,) = jobs([row(reference=cell)], {})

    assert job["key"] == key


@pytest.mark.parametrize("other", ["7.0", 7, 7.0, " 7 ", "7\N{NO-BREAK SPACE}"])
def test_a_job_twice(other):
    assert error_of([row(reference="7"), row(reference=other)], {}) == (
        "row 2: reference: is the same as in row 1"
    )


@pytest.mark.parametrize("keys", [("1.1", "1.10"), ("A1 11", "A11 1"), ("PM-1", "PM1")])
def test_keys_that_differ(keys):
    assert [job["key"] for job in jobs([row(reference=key) for key in keys], {})] == list(keys)


def test_a_job_twice_is_an_error_also_beside_others():
    first, second = error_of([row(property=""), row(amount="x")]).split("\n")

    assert first == "row 1: property: is empty"
    assert second.startswith("row 2: amount: should be")
    assert second.endswith("; reference: is the same as in row 1")


NO_INTEGER = "is a number, but no plain integer such as 7"
SHORTENED = "is a number in scientific notation, as spreadsheets shorten long ones"
SPREADSHEET_ERROR = "is an error of a spreadsheet"
TOO_LARGE = "is a float of 2**53 or more, which is not exact: read it as integers or text"


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        *((cell, NO_INTEGER) for cell in ["1e3", "7.5", 7.5, Decimal("7.5"), "7,0", "1,000", "1_000", "+7"]),
        ("\N{FULLWIDTH DIGIT SEVEN}", NO_INTEGER),
        *((cell, SHORTENED) for cell in ["1E+3", "1.23457E+11", "1,23e+15"]),
        *((cell, SPREADSHEET_ERROR) for cell in ["#N/A", "#REF!", "#NAME?", "#DIV/0!", "########"]),
        *((cell, "is a word for no value") for cell in ["NULL", "none", "N/A"]),
        *((cell, TOO_LARGE) for cell in [2.0**53, -(2.0**60), 1e22]),
    ],
)
@pytest.mark.parametrize("column", ["property", "business_unit", "contact"])
def test_what_is_no_identifier(column, cell, problem):
    rows = [row(**{"business_unit": 1, "contact": 2, column: cell})]

    assert error_of(rows, {"businessUnitID": "business_unit", "customer_contact_id": "contact"}) == (
        f"row 1: {column}: {problem}"
    )


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("1E+3", SHORTENED),
        ("#N/A", SPREADSHEET_ERROR),
        (1e22, TOO_LARGE),
        *((cell, f"should be text or a number, not {type(cell).__name__}") for cell in [True, b"7", ["7"]]),
        (numpy.bool_(True), "should be text or a number, not bool"),
    ],
)
@pytest.mark.parametrize("column", ["reference", "customer"])
def test_what_is_no_reference(column, cell, problem):
    assert error_of([row(**{"customer": "x", column: cell})], {"customerReference": "customer"}) == (
        f"row 1: {column}: {problem}"
    )


@pytest.mark.parametrize(
    ("cell", "sent"), [("007", "007"), ("7.0", "7"), (Decimal("7.0"), "7"), (2.0**53 - 1, 2**53 - 1)]
)
def test_properties(cell, sent):
    (job,) = jobs([row(property=cell)], {})

    assert job["property_id"] == sent


@pytest.mark.parametrize(
    "cell",
    [
        date(2026, 1, 31),
        datetime(2026, 1, 31, tzinfo=UTC),
        pandas.Timestamp("2026-01-31"),
        pandas.Timedelta("1h"),
        numpy.datetime64("2026-01-31"),
        numpy.datetime64("2026-01-31", "ns"),
        numpy.timedelta64(5, "ns"),
        numpy.array([7]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("field", ["customerReference", "notes", "businessUnitID", "extra_fields.due"])
def test_a_cell_whose_text_is_not_known(field, cell):
    assert error_of([row(cell=cell)], {field: "cell"}) == (
        f"row 1: cell: should be text or a number, not {type(cell).__name__}"
    )


@pytest.mark.parametrize("field", ["skills", "extra_fields.tenant"])
@pytest.mark.parametrize(
    ("cell", "sent"),
    [
        (True, True),
        (numpy.bool_(True), True),
        (["x"], ["x"]),
        ({"a": 1}, {"a": 1}),
        (99.5, "99.5"),
        ("1E+3", "1E+3"),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_fields_of_any_kind(field, cell, sent):
    (job,) = jobs([row(cell=cell)], {field: "cell"})

    assert (job["job"].get("extra_fields") or {"tenant": job["job"].get("skills")})["tenant"] == sent


@pytest.mark.parametrize("cell", [[date(2026, 1, 31)], {1: "x"}, [("a", 1)]])
def test_a_record_that_is_no_json(cell):
    assert "extra_fields.tenant" in error_of([row(cell=cell)], {"extra_fields.tenant": "cell"})


def test_notes_are_sent_as_they_are():
    (job,) = jobs([row(notes="{see the plan}")])

    assert job["job"]["notes"] == "{see the plan}"


GAPS = {
    "float": frame(unit=[3, None]),
    "Int64": frame(unit=pandas.array([3, None], dtype="Int64")),
    "Arrow": frame(unit=pandas.array([3, None], dtype=pandas.ArrowDtype(pyarrow.int64()))),
    "category": frame(unit=pandas.Categorical([3, None])),
    "object": frame(unit=numpy.array([3, pandas.NA], dtype=object)),
    "Polars": frame(polars, unit=[3, None]),
    "Polars, NaN": frame(polars, unit=[3.0, float("nan")]),
}


@pytest.mark.parametrize("table", GAPS)
def test_integers_with_gaps(table):
    first, second = jobs(GAPS[table], {"businessUnitID": "unit"})

    assert json.dumps([first["job"], second["job"]]) == '[{"businessUnitID": 3}, {}]'


@pytest.mark.parametrize("dtype", ["object", "string", "string[pyarrow]", "str"])
def test_texts_of_pandas(dtype):
    cells = pandas.array(["x", None, "None", "nan", ""], dtype=object)

    made = jobs(frame(notes=pandas.Series(cells).astype(dtype)), {"notes": "notes"})

    assert [job["job"] for job in made] == [{"notes": "x"}, {}, {}, {}, {}]


@pytest.mark.parametrize(
    "times",
    [
        pandas.to_datetime([None, "2026-01-31"]),
        pandas.to_datetime([None, "2026-01-31T08:00:00Z"]),
        pandas.array([None, datetime(2026, 1, 31)], dtype=pandas.ArrowDtype(pyarrow.timestamp("us"))),
    ],
    ids=["without a zone", "UTC", "Arrow"],
)
def test_times_of_pandas(times):
    assert error_of(frame(when=times), {"customerReference": "when"}) == (
        "row 2: when: should be text or a number, not Timestamp"
    )


@pytest.mark.parametrize(
    ("cell", "name"),
    [(datetime(2026, 1, 31), "datetime"), (date(2026, 1, 31), "date"), (["x"], "list"), ({"a": 1}, "dict")],
)
def test_cells_of_polars(cell, name):
    assert error_of(frame(polars, cell=[cell]), {"customerReference": "cell"}) == (
        f"row 1: cell: should be text or a number, not {name}"
    )


def test_the_index_of_pandas_does_not_matter():
    table = frame(property=[7, 8])
    table.index = pandas.MultiIndex.from_tuples([(1, 2), (1, 2)], names=["property", "reference"])

    assert [job["property_id"] for job in jobs(table)] == [7, 8]
    assert jobs(table.set_axis([0, 0])) == jobs(table)
    assert error_of(frame().set_index("reference"), {}) == (
        "rows: there is no column reference, only property, amount, notes"
    )


def test_only_the_columns_that_are_used_matter():
    table = frame()
    table.columns = ["reference", "property", "notes", "notes"]

    with pytest.warns(UserWarning, match="columns are not unique"):
        assert jobs(table, {}) == [{"property_id": 7, "key": "PM-1", "job": {}}]


def twice(table):
    table.columns = ["reference", "property", "property", "notes"]
    return table


TWICE = {
    "pandas": twice(frame()),
    "CSV": csv.DictReader(["reference,property,property", "PM-1,7,8"]),
    "blanks": csv.DictReader(["reference,property,property ", "PM-1,7,8"]),
}


@pytest.mark.parametrize("table", TWICE)
def test_a_column_twice(table):
    assert error_of(TWICE[table], {}) == "rows: there is more than one column property"


@pytest.mark.parametrize("query", [sqlite_rows, sqlalchemy_rows])
def test_a_column_twice_in_a_query(query):
    assert error_of(query(f"{QUERY}, 8 as property")) == "row 1: there is more than one column property"


@pytest.mark.parametrize(
    "header", ["\ufeffreference,property", "reference ,property", " reference\t, property "]
)
def test_a_header_with_a_byte_order_mark_or_blanks(header):
    assert jobs(csv.DictReader([header, "PM-1,7"]), {}) == [{"property_id": "7", "key": "PM-1", "job": {}}]


@pytest.mark.parametrize("restkey", [None, "rest"])
def test_long_and_short_lines(restkey):
    table = csv.DictReader(["reference,property,notes", "PM-1,7", "PM-2,8,x,y", "PM-3"], restkey=restkey)

    assert error_of(table, {"notes": "notes"}) == (
        "row 2: has more cells than there are columns\nrow 3: property: is empty"
    )


def test_a_short_line_has_empty_cells():
    assert jobs(csv.DictReader(["reference,property,notes", "PM-1,7"]), {"notes": "notes"}) == [
        {"property_id": "7", "key": "PM-1", "job": {}}
    ]


@pytest.mark.parametrize(
    "table",
    [[], csv.DictReader([]), pandas.DataFrame(), frame().head(0), frame(polars).head(0), frame().iloc[:0]],
    ids=["list", "CSV", "pandas", "pandas with columns", "Polars", "slice"],
)
def test_no_rows(table):
    assert jobs(table) == []


@pytest.mark.parametrize(
    "table",
    [csv.DictReader(["reference"]), frame()[["reference"]].head(0), polars.DataFrame({"reference": []})],
)
def test_no_rows_and_too_few_columns(table):
    assert error_of(table, {}) == "rows: there is no column property, only reference"


MAPPING = "should be a mapping from column to cell"
NO_TABLES = {
    "Series": (frame()["reference"], f"row 1 of the Series {MAPPING}, not str"),
    "groups": (frame().groupby("reference"), f"row 1 of the DataFrameGroupBy {MAPPING}, not tuple"),
    "Polars, Series": (frame(polars)["reference"], f"row 1 of the Series {MAPPING}, not str"),
    "Polars, groups": (frame(polars).group_by("reference"), f"row 1 of the GroupBy {MAPPING}, not tuple"),
    "lazy": (
        frame(polars).lazy(),
        "should be mappings, such as a csv.DictReader, or a DataFrame, not LazyFrame",
    ),
    "array": (frame().to_numpy(), f"row 1 of the ndarray {MAPPING}, not ndarray"),
    "batches": (
        pyarrow.table({"reference": ["PM-1"]}).to_batches(),
        f"row 1 of the list {MAPPING}, not RecordBatch",
    ),
    "numbers": (
        frame().set_axis(range(4), axis=1),
        "there is no column reference, property, only 0, 1, 2, 3",
    ),
}


@pytest.mark.parametrize("table", NO_TABLES)
def test_what_is_no_dataframe(table):
    rows, problem = NO_TABLES[table]

    assert error_of(rows, {}) == f"rows: {problem}"


def test_a_field_that_looks_like_a_column_of_the_job():
    (job,) = jobs([{**row(), "key": 7}], {"extra_fields.key": "key", "notes": "reference"})

    assert job["job"] == {"extra_fields": {"key": 7}, "notes": "PM-1"}


def test_many_columns_are_not_all_listed():
    problem = error_of([{"\u200b": 1, **dict.fromkeys(map(str, range(5000)))}], {})

    assert problem.startswith("row 1: there is no column reference, property, only \\u200b, 0, 1")
    assert len(problem) < MAX_LISTED + 60


UNCLOSED = {
    "to the end": 'reference,property,notes\nPM-1,7,"no access\nPM-2,8,x\nPM-3,9,y\n',
    "in the first column": 'notes,reference,property\n"no access,PM-1,7\nx,PM-2,8\n',
    "to another quote": 'reference,property,notes\nPM-1,7,"no access\nPM-2,8,"x"\n',
    "tabs": 'reference\tproperty\tnotes\nPM-1\t7\t"no access\nPM-2\t8\tx\n',
}


@pytest.mark.parametrize("name", UNCLOSED)
@pytest.mark.parametrize("lines", [io.StringIO, str.splitlines])
def test_a_quote_that_is_not_closed_loses_no_row(name, lines):
    table = csv.DictReader(lines(UNCLOSED[name]), delimiter="\t" if name == "tabs" else ",")

    assert error_of(table, {"notes": "notes"}).startswith(
        "rows: row 1: notes: holds further rows, as if a quote was not closed"
    )


def test_a_cell_may_have_several_lines():
    text = 'reference,property,notes\nPM-1,7,"a, b\nc, ""d"""\n\nPM-2,8,"x, y"\n'

    assert [job["job"]["notes"] for job in jobs(csv.DictReader(io.StringIO(text)), {"notes": "notes"})] == [
        'a, b\nc, "d"',
        "x, y",
    ]


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
        ([("PM-1", 7)], {}, "rows: row 1 of the list should be a mapping from column to cell, not tuple"),
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
        (
            [row()],
            {"extra.x": "notes"},
            "map: a job has no field 'extra.x'; if the service has one, use 'extra_fields.extra.x'",
        ),
        (
            [row()],
            {"extra_fields.": "notes"},
            "map: a job has no field 'extra_fields.'; "
            "if the service has one, use 'extra_fields.extra_fields.'",
        ),
        (
            [row()],
            {"customerReference": "reference", "customer_reference": "notes"},
            "map: the field 'customerReference' is given twice",
        ),
        (
            [row()],
            {"notes": None},
            "row 1: there is no column None, only reference, property, amount, notes",
        ),
        (
            [row(notes="x")],
            {"extra_fields.notes": "notes"},
            "row 1: job.extra_fields: notes belongs beside it, not in it",
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
