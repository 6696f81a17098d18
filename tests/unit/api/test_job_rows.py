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
WANTED = {
    "property_id": 7,
    "key": "PM-1",
    "job": {"customerReference": "PM-1", "quotedAmount": "99.5"},
}


def jobs(rows, columns=COLUMNS):
    return jobs_from_rows(rows, key="reference", property_id="property", map=columns)


def row(**cells):
    return {"reference": "PM-1", "property": 7, "amount": "99.5", "notes": "", **cells}


def frame(library=pandas, **columns):
    """Return a DataFrame; each column is a list, and those that are not given have suitable cells."""
    size = max(map(len, columns.values()), default=1)
    keys = [f"PM-{number + 1}" for number in range(size)]
    cells = {
        "reference": keys,
        "property": [7] * size,
        "amount": ["99.5"] * size,
        "notes": [""] * size,
    }
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
    "pandas, CSV": pandas.read_csv(io.StringIO("reference,property,amount,notes\nPM-1,7,99.5,\n")),
    "Series": [one for _, one in frame().iterrows()],
    "Polars": frame(polars, amount=[99.5], notes=[None]),
    "Polars, NaN": frame(polars, property=[7.0], notes=[float("nan")]),
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
        {
            "property_id": "8",
            "key": "PM-2",
            "job": {"customerReference": "PM-2", "notes": "no access"},
        },
    ]


EMPTY = [None, "", "  ", "None", "nan", "NaN", float("nan"), Decimal("NaN"), "NaT", "<NA>"]


@pytest.mark.parametrize("cell", EMPTY)
def test_a_field_without_a_value_is_not_sent_and_key_and_property_need_one(cell):
    (job,) = jobs([row(amount=cell, notes=cell)])

    assert job["job"] == {"customerReference": "PM-1"}
    for column, named in [("reference", "row 1"), ("property", "row 1 (key 'PM-1')")]:
        assert error_of([row(**{column: cell})], {}) == f"{named}: {column}: is empty"


@pytest.mark.parametrize(
    ("field", "cell", "sent"),
    [
        *(
            ("quotedAmount", cell, sent)
            for cell, sent in [(120, 120), (120.0, 120), (99.5, "99.5")]
        ),
        *(("quotedAmount", cell, cell) for cell in ["7.0", "120.00"]),
        ("quotedAmount", 1e-05, "0.00001"),
        ("quotedAmount", Decimal("120.00"), "120.00"),
        ("businessUnitID", 7.0, 7),
        ("businessUnitID", "7.0", "7"),
        ("business_unit_id", 7, 7),
        ("customerContactID", 7.0, 7),
        ("customerReference", "7.0", "7.0"),
        ("notes", 7.0, "7"),
        ("priority", 1, "1"),
        ("notes", "{1E+3", "{1E+3"),
        *(("skills", cell, cell) for cell in [True, ["x"], {"a": 1}, "1E+3", '{"a": 1}']),
        *(("skills", cell, sent) for cell, sent in [(numpy.bool_(True), True), (99.5, "99.5")]),
        ("extra_fields.tenant", {"a": 1}, {"tenant": {"a": 1}}),
    ],
)
def test_a_cell_fits_its_field(field, cell, sent):
    (job,) = jobs([row(cell=cell)], {field: "cell"})

    assert list(job["job"].values()) == [sent]


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        (7.0, "7"),
        ("7.0", "7"),
        (Decimal("7.0"), "7"),
        ("007", "007"),
        ("1.10", "1.10"),
        ("12E5", "12E5"),
    ],
)
def test_keys(cell, key):
    (job,) = jobs([row(reference=cell)], {})

    assert job["key"] == key


@pytest.mark.parametrize("other", ["7.0", 7, 7.0, " 7 ", "7\N{NO-BREAK SPACE}"])
def test_a_job_twice(other):
    assert error_of([row(reference="7"), row(reference=other)], {}) == (
        "row 2 (key '7'): reference: is the same as in row 1"
    )


AMOUNT = "should be an amount such as '120' or '99.50', as text or Decimal"
SHORTENED = "is a number in scientific notation, as spreadsheets shorten long ones"
SPREADSHEET_ERROR = "is an error of a spreadsheet"
TOO_LARGE = "is a float of 2**53 or more, which is not exact: read it as integers or text"
IDENTIFIERS = ("property", "contact")
NO_TEXT = "should be text or a number, not {}"
NO_DATE = f"{NO_TEXT}: give its isoformat()"
NO_FIELD = "map: a job has no field '{0}'; if the service has one, use 'extra_fields.{0}'"
DATES = [date(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC), pandas.Timestamp("2026-01-31")]
REFUSED = [
    *(
        (("notes", "due"), cell, NO_TEXT.format(type(cell).__name__) + ": give its isoformat()")
        for cell in DATES
    ),
    (("amount",), 0.1 + 0.2, "has more than 6 decimals: round it"),
    (("amount",), float("inf"), "is infinite"),
    *((("amount",), cell, AMOUNT) for cell in ("12,50", -3)),
    *((IDENTIFIERS, cell, SHORTENED) for cell in ["1.23457E+11", "1,23e+15"]),
    *(
        (IDENTIFIERS, cell, SPREADSHEET_ERROR)
        for cell in ["#REF!", "#NAME?", "#DIV/0!", "########"]
    ),
    *(
        ((*IDENTIFIERS, "reference"), cell, "is a word for no value")
        for cell in ["NULL", "none", "N/A"]
    ),
    *((IDENTIFIERS, cell, TOO_LARGE) for cell in [2.0**53, -(2.0**60)]),
    *(
        ((*IDENTIFIERS, "reference", "customer"), cell, problem)
        for cell, problem in [("1E+3", SHORTENED), ("#N/A", SPREADSHEET_ERROR), (1e22, TOO_LARGE)]
    ),
    *(
        (("reference", "customer", "amount"), cell, NO_TEXT.format(kind))
        for cell, kind in [
            (True, "bool"),
            (b"7", "bytes"),
            (["7"], "list"),
            (numpy.bool_(True), "bool"),
        ]
    ),
    *(
        (("notes", "due"), cell, NO_TEXT.format(type(cell).__name__))
        for cell in [numpy.datetime64("2026-01-31"), numpy.array([7])]
    ),
]


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [(column, cell, problem) for columns, cell, problem in REFUSED for column in columns],
)
def test_what_may_be_wrong_is_refused(column, cell, problem):
    fields = {
        "customer_contact_id": "contact",
        "customerReference": "customer",
        "extra_fields.due": "due",
    }
    rows = [row(**{"contact": 2, "customer": "x", "due": "y", column: cell})]

    named = "row 1" if column == "reference" else "row 1 (key 'PM-1')"
    assert error_of(rows, {**fields, "notes": "notes", "quotedAmount": "amount"}) == (
        f"{named}: {column}: {problem}"
    )


def test_the_index_of_pandas_does_not_matter():
    table = frame(property=[7, 8])
    table.index = pandas.MultiIndex.from_tuples([(1, 2), (1, 2)], names=["property", "reference"])

    assert [job["property_id"] for job in jobs(table)] == [7, 8]
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
    "pandas": ("rows", twice(frame())),
    "CSV": ("rows", csv.DictReader(["reference,property,property", "PM-1,7,8"])),
    "blanks": ("rows", csv.DictReader(["reference,property,property ", "PM-1,7,8"])),
    "sqlite3": ("row 1", sqlite_rows(f"{QUERY}, 8 as property")),
    "SQLAlchemy": ("row 1", sqlalchemy_rows(f"{QUERY}, 8 as property")),
}


@pytest.mark.parametrize(("place", "table"), TWICE.values(), ids=TWICE)
def test_a_column_twice(place, table):
    assert error_of(table, {}) == f"{place}: there is more than one column property"


@pytest.mark.parametrize(
    "header", ["\ufeffreference,property", "reference ,property", " reference\t, property "]
)
def test_a_header_with_a_byte_order_mark_or_blanks(header):
    assert jobs(csv.DictReader([header, "PM-1,7"]), {}) == [
        {"property_id": "7", "key": "PM-1", "job": {}}
    ]


def test_long_and_short_lines():
    table = csv.DictReader(["reference,property,notes", "PM-1,7", "PM-2,8,x,y", "PM-3"])

    assert error_of(table, {"notes": "notes"}) == (
        "row 2: has more cells than there are columns\nrow 3 (key 'PM-3'): property: is empty"
    )


@pytest.mark.parametrize(
    "table",
    [[], csv.DictReader([]), pandas.DataFrame(), frame(polars).head(0)],
    ids=["list", "CSV", "pandas", "Polars"],
)
def test_no_rows(table):
    assert jobs(table) == []


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

    assert [
        job["job"]["notes"] for job in jobs(csv.DictReader(io.StringIO(text)), {"notes": "notes"})
    ] == [
        'a, b\nc, "d"',
        "x, y",
    ]


def test_every_mistake_of_every_row_is_named_at_once():
    rows = [
        row(),
        row(reference="", property="a b"),
        row(),
        row(reference="PM-4", amount="x", notes=["y"]),
    ]

    with pytest.raises(FsmInputError) as refused:
        jobs(rows)

    first, second, third = str(refused.value).split("\n")
    assert first.startswith("row 2: reference: is empty; property: is not an identifier")
    assert second == "row 3 (key 'PM-1'): reference: is the same as in row 1"
    assert third.startswith("row 4 (key 'PM-4'): notes: ")
    assert "; amount: should be" in third


@pytest.mark.parametrize(("more", "end"), [(1, "and 1 more row"), (3, "and 3 more rows")])
def test_a_long_list_of_mistakes_ends(more, end):
    with pytest.raises(FsmInputError) as refused:
        jobs([row(property="") for _ in range(MAX_PROBLEMS + more)])

    assert str(refused.value).split("\n")[MAX_PROBLEMS:] == [end]


MAPPINGS = "rows: should be mappings, such as a csv.DictReader, or a DataFrame, not"
MAPPING = "should be a mapping, as dict(zip(columns, row)) is, not"
NO_TABLES = {
    "text": ("a,b", f"{MAPPINGS} str"),
    "one row": (row(), f"{MAPPINGS} dict"),
    "tuples": ([("PM-1", 7)], f"rows: row 1 of the list {MAPPING} tuple"),
    "Series": (frame()["reference"], f"rows: row 1 of the Series {MAPPING} str"),
    "lazy": (frame(polars).lazy(), f"{MAPPINGS} LazyFrame"),
    "numbers": (
        frame().set_axis(range(4), axis=1),
        "rows: there is no column reference, property, only 0, 1, 2, 3",
    ),
    "another case": (
        [{"reference": "PM-1", "Property": 7}],
        "row 1: there is no column property, only reference, Property",
    ),
    "rest": ([{**row(), None: ["x"]}], "row 1: has more cells than there are columns"),
}


@pytest.mark.parametrize("table", NO_TABLES)
def test_what_is_no_table(table):
    rows, problem = NO_TABLES[table]

    assert error_of(rows, {}) == problem


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        *(({name: "amount"}, NO_FIELD.format(name)) for name in ("customerRef", "extra_fields.")),
        ({"x": "notes"}, NO_FIELD.format("x") + ", or is it the wrong way round: {'notes': 'x'}?"),
        (
            {"customerReference": "reference", "customer_reference": "notes"},
            "map: the field 'customerReference' is given twice",
        ),
        (["notes"], "map: should map names to values, not list"),
        (
            {"notes": None},
            "row 1: there is no column None, only reference, property, amount, notes",
        ),
    ],
)
def test_what_is_no_map(fields, problem):
    assert error_of([row()], fields) == problem
