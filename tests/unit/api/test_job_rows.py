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
JOB = {
    "property_id": 7,
    "key": "PM-1",
    "job": {"customerReference": "PM-1", "quotedAmount": "99.5"},
}


def jobs(rows, columns=COLUMNS):
    return jobs_from_rows(rows, key="reference", property_id="property", map=columns)


def row(**cells):
    return {"reference": "PM-1", "property": 7, "amount": "99.5", "notes": "", **cells}


def frame(library=pandas, **columns):
    """Return a DataFrame of columns; those that are not given have suitable cells."""
    size = max(map(len, columns.values()), default=1)
    cells = {
        "reference": [f"PM-{number + 1}" for number in range(size)],
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


def csv_rows(text):
    return csv.DictReader(io.StringIO(text))


QUERY = "select 'PM-1' as reference, 7 as property, 99.5 as amount, null as notes"
CSV_FILE = io.StringIO("reference,property,amount,notes\nPM-1,7,99.5,\n")
SERIES = [series for _, series in frame().iterrows()]
NUMPY_ROW = row(
    reference=numpy.str_("PM-1"),
    property=numpy.int64(7),
    amount=numpy.float64(99.5),
    notes=numpy.datetime64("NaT"),
)
TABLES = {
    "mappings": [row()],
    "generator": (mapping for mapping in [row()]),
    "pandas": frame(property=[7.0], amount=[99.5], notes=[float("nan")]),
    "pandas, nullable": frame(property=[7.0], amount=[99.5], notes=[None]).convert_dtypes(),
    "pandas, Arrow": frame(amount=[99.5], notes=[None]).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, CSV": pandas.read_csv(CSV_FILE),
    "Series": SERIES,
    "Polars": frame(polars, amount=[99.5], notes=[None]),
    "Polars, NaN": frame(polars, property=[7.0], notes=[float("nan")]),
    "Arrow": pyarrow.Table.from_pylist([row(amount=99.5)]).to_pylist(),
    "database": [row(amount=Decimal("99.5"), notes=None)],
    "sqlite3": sqlite_rows(QUERY),
    "SQLAlchemy": sqlalchemy_rows(QUERY),
    "NumPy": [NUMPY_ROW],
}


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_the_same_job_whatever_it_comes_from(table):
    made = jobs(TABLES[table])

    assert made == [JOB]
    assert json.loads(json.dumps(made)) == made


def test_a_csv_file():
    text = "reference,property,amount,notes,other\nPM-1,7.0,99.5,,x\n PM-2 ,8,None,no access,\n"

    first, second = jobs(csv_rows(text))

    assert first == {**JOB, "property_id": "7"}
    assert second == {
        "property_id": "8",
        "key": "PM-2",
        "job": {"customerReference": "PM-2", "notes": "no access"},
    }


EMPTY = [None, "", "  ", "None", "nan", "NaN", float("nan"), Decimal("NaN"), "NaT", "<NA>"]


@pytest.mark.parametrize("cell", EMPTY)
def test_a_field_without_a_value_is_not_sent_and_key_and_property_need_one(cell):
    [job] = jobs([row(amount=cell, notes=cell)])

    assert job["job"] == {"customerReference": "PM-1"}
    without_key = [row(reference=cell)]
    assert error_of(without_key, {}) == "row 1: reference: is empty"
    without_property = [row(property=cell)]
    assert error_of(without_property, {}) == "row 1 (key 'PM-1'): property: is empty"


@pytest.mark.parametrize(
    ("field", "cell", "sent"),
    [
        ("quotedAmount", 120, 120),
        ("quotedAmount", 120.0, 120),
        ("quotedAmount", 99.5, "99.5"),
        ("quotedAmount", "7.0", "7.0"),
        ("quotedAmount", "120.00", "120.00"),
        ("quotedAmount", 1e-05, "0.00001"),
        ("quotedAmount", Decimal("120.00"), "120.00"),
        ("businessUnitID", 7.0, 7),
        ("businessUnitID", "7.0", "7"),
        ("business_unit_id", 7, 7),
        ("customerContactID", 7.0, 7),
        ("customerReference", "7.0", "7.0"),
        ("customerReference", 7.0, "7"),
        ("customerReference", Decimal("7.0"), "7"),
        ("customerReference", Decimal("7.50"), "7.50"),
        ("customerReference", '="PO-1"', "PO-1"),
        ("customerReference", '="007"', "007"),
        ("customerReference", ' =" 5"" pipe " ', '5" pipe'),
        ("customerReference", '="PO-1"&A2', '="PO-1"&A2'),
        ("notes", '="=x"', "=x"),
        ("skills", '="gas"', "gas"),
        ("quotedAmount", '="12.50"', "12.50"),
        ("businessUnitID", '="7"', "7"),
        ("notes", 7.0, "7"),
        ("priority", 1, "1"),
        ("notes", "{1E+3", "{1E+3"),
        ("skills", True, True),
        ("skills", ["x"], ["x"]),
        ("skills", {"a": 1}, {"a": 1}),
        ("skills", "1E+3", "1E+3"),
        ("skills", '{"a": 1}', '{"a": 1}'),
        ("skills", numpy.bool_(True), True),
        ("skills", 99.5, "99.5"),
        ("extra_fields.tenant", {"a": 1}, {"tenant": {"a": 1}}),
    ],
)
def test_a_cell_fits_its_field(field, cell, sent):
    [job] = jobs([row(cell=cell)], {field: "cell"})

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
    [job] = jobs([row(reference=cell)], {})

    assert job["key"] == key


@pytest.mark.parametrize(
    "other", ["7.0", 7, 7.0, Decimal("7.0"), " 7 ", "7\N{NO-BREAK SPACE}", '="7"']
)
def test_a_job_twice(other):
    rows = [row(reference="7"), row(reference=other)]

    assert error_of(rows, {}) == "row 2 (key '7'): reference: is the same as in row 1"


@pytest.mark.parametrize("other", ["PM\N{NON-BREAKING HYPHEN}1", "\ufeffPM-1", "PM\u200b-1"])
def test_a_key_that_looks_like_that_of_another_row(other):
    assert error_of([row(), row(reference=other)], {}) == (
        f"row 2 (key {other!r}): reference: is the same as in row 1"
    )


AMOUNT = "should be an amount such as '120' or '99.50', as text or Decimal"
SHORTENED = "is a number in scientific notation, as spreadsheets shorten long ones"
SPREADSHEET_ERROR = "is an error of a spreadsheet"
TOO_LARGE = "is a float of 2**53 or more, which is not exact: read it as integers or text"
NO_VALUE = "is a word for no value"
NO_TEXT = "should be text or a number, not {}"
NO_DATE = f"{NO_TEXT}: give its isoformat()"
NO_FIELD = "map: a job has no field '{0}'; if the service has one, use 'extra_fields.{0}'"
IDENTIFIERS = ["property", "contact"]
KEYS = ["property", "contact", "reference"]
KEYS_AND_REFERENCE = ["property", "contact", "reference", "customer"]
TEXTS = ["reference", "customer", "amount"]
REFUSED = [
    (["notes", "due"], date(2026, 1, 31), NO_DATE.format("date")),
    (["notes", "due"], datetime(2026, 1, 31, tzinfo=UTC), NO_DATE.format("datetime")),
    (["notes", "due"], pandas.Timestamp("2026-01-31"), NO_DATE.format("Timestamp")),
    (["notes", "due"], numpy.datetime64("2026-01-31"), NO_TEXT.format("datetime64")),
    (["notes", "due"], numpy.array([7]), NO_TEXT.format("ndarray")),
    (["amount"], 0.1 + 0.2, "has more than 6 decimals: round it"),
    (["amount"], float("inf"), "is infinite"),
    (["amount"], "12,50", AMOUNT),
    (["amount"], -3, AMOUNT),
    (["property"], 7.5, "'7.5' is a decimal number: make it an integer"),
    (["property"], "7.5", "'7.5' is a decimal number: make it an integer"),
    (["property"], Decimal("7.5"), "'7.5' is a decimal number: make it an integer"),
    (IDENTIFIERS, "1.23457E+11", SHORTENED),
    (IDENTIFIERS, "1,23e+15", SHORTENED),
    (IDENTIFIERS, "#REF!", SPREADSHEET_ERROR),
    (IDENTIFIERS, "#NAME?", SPREADSHEET_ERROR),
    (IDENTIFIERS, "#DIV/0!", SPREADSHEET_ERROR),
    (IDENTIFIERS, "########", SPREADSHEET_ERROR),
    (IDENTIFIERS, 2.0**53, TOO_LARGE),
    (IDENTIFIERS, -(2.0**60), TOO_LARGE),
    (KEYS, "NULL", NO_VALUE),
    (KEYS, "none", NO_VALUE),
    (KEYS, "N/A", NO_VALUE),
    (KEYS_AND_REFERENCE, "1E+3", SHORTENED),
    (KEYS_AND_REFERENCE, "#N/A", SPREADSHEET_ERROR),
    (KEYS_AND_REFERENCE, 1e22, TOO_LARGE),
    (TEXTS, True, NO_TEXT.format("bool")),
    (TEXTS, b"7", NO_TEXT.format("bytes")),
    (TEXTS, ["7"], NO_TEXT.format("list")),
    (TEXTS, numpy.bool_(True), NO_TEXT.format("bool")),
]


def refused_cells():
    """Yield each column of a refused cell, the cell and its problem."""
    for columns, cell, problem in REFUSED:
        for column in columns:
            yield column, cell, problem


@pytest.mark.parametrize(("column", "cell", "problem"), list(refused_cells()))
def test_what_may_be_wrong_is_refused(column, cell, problem):
    fields = {
        "customer_contact_id": "contact",
        "customerReference": "customer",
        "extra_fields.due": "due",
        "notes": "notes",
        "quotedAmount": "amount",
    }
    cells = {"contact": 2, "customer": "x", "due": "y", column: cell}

    message = error_of([row(**cells)], fields)

    place = "row 1" if column == "reference" else "row 1 (key 'PM-1')"
    assert message == f"{place}: {column}: {problem}"


def test_the_index_of_pandas_does_not_matter():
    table = frame(property=[7, 8])
    table.index = pandas.MultiIndex.from_tuples([(1, 2), (1, 2)], names=["property", "reference"])

    first, second = jobs(table)

    assert first["property_id"] == 7
    assert second["property_id"] == 8
    indexed = frame().set_index("reference")
    assert error_of(indexed, {}) == (
        "rows: there is no column reference, only property, amount, notes"
    )


def test_only_the_columns_that_are_used_matter():
    table = frame()
    table.columns = ["reference", "property", "notes", "notes"]

    with pytest.warns(UserWarning, match="columns are not unique"):
        assert jobs(table, {}) == [{"property_id": 7, "key": "PM-1", "job": {}}]


def frame_with_a_column_twice():
    table = frame()
    table.columns = ["reference", "property", "property", "notes"]
    return table


TWICE = {
    "pandas": ("rows", frame_with_a_column_twice()),
    "CSV": ("rows", csv.DictReader(["reference,property,property", "PM-1,7,8"])),
    "blanks": ("rows", csv.DictReader(["reference,property,property ", "PM-1,7,8"])),
    "sqlite3": ("row 1", sqlite_rows(f"{QUERY}, 8 as property")),
    "SQLAlchemy": ("row 1", sqlalchemy_rows(f"{QUERY}, 8 as property")),
}


@pytest.mark.parametrize(("place", "table"), TWICE.values(), ids=TWICE)
def test_a_column_twice(place, table):
    assert error_of(table, {}) == f"{place}: there is more than one column property"


@pytest.mark.parametrize(
    "header",
    [
        "\ufeffreference,property",
        "reference ,property",
        " reference\t, property ",
    ],
)
def test_a_header_with_a_byte_order_mark_or_blanks(header):
    [job] = jobs(csv.DictReader([header, "PM-1,7"]), {})

    assert job == {"property_id": "7", "key": "PM-1", "job": {}}


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


def test_a_key_and_a_reference_of_one_column_are_one_text():
    [job] = jobs([row(reference=Decimal("12.0"))])

    assert (job["key"], job["job"]["customerReference"]) == ("12", "12")


BLANK = dict.fromkeys(row())
BLANK_ROWS = {
    "CSV": csv.DictReader(["reference,property,other", "PM-1,7,x", ", ,", ",,", ",,"]),
    "formulas": csv_rows('reference,property\nPM-1,7\n=""\n"=""""",None\n'),
    "mappings": [row(), BLANK, dict.fromkeys(row(), "")],
    "pandas": pandas.DataFrame([row(), BLANK, BLANK]),
    "Polars": polars.DataFrame([row(), BLANK, BLANK]),
    "sqlite3": sqlite_rows(f"{QUERY} union all select null, null, null, ' '"),
    "only": [BLANK],
}


@pytest.mark.parametrize("name", BLANK_ROWS)
def test_rows_without_any_value_at_the_end_are_ignored(name):
    keys = [job["key"] for job in jobs(BLANK_ROWS[name], {})]

    assert keys == ([] if name == "only" else ["PM-1"])


def test_a_row_without_any_value_before_others_is_a_mistake_and_rows_keep_their_numbers():
    rows = [row(), BLANK, row(), row(reference="", notes="x"), BLANK]

    assert error_of(rows) == (
        "row 2: reference: is empty; property: is empty\n"
        "row 3 (key 'PM-1'): reference: is the same as in row 1\n"
        "row 4: reference: is empty"
    )


def test_rows_that_are_given_one_by_one_have_the_numbers_that_are_given_with_them():
    mistakes = []
    for number, wrong in enumerate([row(property=""), row(property="x y")], 2):
        with pytest.raises(FsmInputError) as refused:
            jobs_from_rows([wrong], key="reference", property_id="property", map={}, start=number)
        mistakes.append(str(refused.value))

    first, second = mistakes
    assert first == "row 2 (key 'PM-1'): property: is empty"
    assert second.startswith("row 3 (key 'PM-1'): property: 'x y' is not an identifier")
    with pytest.raises(FsmInputError, match=r"^rows: row 9 of the list should be a mapping"):
        jobs_from_rows([()], key="reference", property_id="property", map={}, start=9)


def test_a_file_as_excel_writes_it():
    """With a byte-order mark, texts as formulas, and rows that somebody has emptied."""
    content = b'\xef\xbb\xbfreference;property\r\n="PO-1";="7"\r\n;\r\n;\r\n'

    [job] = jobs(csv.DictReader(io.StringIO(content.decode()), delimiter=";"), {})

    assert job == {"property_id": "7", "key": "PO-1", "job": {}}


def test_many_columns_are_not_all_listed():
    other_columns = dict.fromkeys(map(str, range(5000)))

    problem = error_of([{"\u200b": 1, **other_columns}], {})

    assert problem.startswith("row 1: there is no column reference, property, only \\u200b, 0, 1")
    assert len(problem) < MAX_LISTED + 60


UNCLOSED = {
    "to the end": (",", 'reference,property,notes\nPM-1,7,"no access\nPM-2,8,x\nPM-3,9,y\n'),
    "in the first column": (",", 'notes,reference,property\n"no access,PM-1,7\nx,PM-2,8\n'),
    "to another quote": (",", 'reference,property,notes\nPM-1,7,"no access\nPM-2,8,"x"\n'),
    "tabs": ("\t", 'reference\tproperty\tnotes\nPM-1\t7\t"no access\nPM-2\t8\tx\n'),
}


@pytest.mark.parametrize(("delimiter", "text"), UNCLOSED.values(), ids=UNCLOSED)
@pytest.mark.parametrize("lines", [io.StringIO, str.splitlines])
def test_a_quote_that_is_not_closed_loses_no_row(delimiter, text, lines):
    table = csv.DictReader(lines(text), delimiter=delimiter)

    message = error_of(table, {"notes": "notes"})

    assert message.startswith(
        "rows: row 1: notes: holds further rows, as if a quote was not closed"
    )


def test_a_cell_may_have_several_lines():
    text = 'reference,property,notes\nPM-1,7,"a, b\nc, ""d"""\n\nPM-2,8,"x, y"\n'

    first, second = jobs(csv_rows(text), {"notes": "notes"})

    assert first["job"]["notes"] == 'a, b\nc, "d"'
    assert second["job"]["notes"] == "x, y"


def test_a_cell_of_the_first_row_may_have_as_many_commas_as_the_table_has_columns():
    text = 'reference,property,notes\nPM-1,7,"a, b, c, d"\nPM-2,8,x\n'

    first, _ = jobs(csv_rows(text), {"notes": "notes"})

    assert first["job"]["notes"] == "a, b, c, d"


def test_every_mistake_of_every_row_is_named_at_once():
    rows = [
        row(),
        row(reference="", property="a b"),
        row(),
        row(reference="PM-4", amount="x", notes=["y"]),
    ]

    message = error_of(rows)

    first, second, third = message.split("\n")
    assert first.startswith("row 2: reference: is empty; property: 'a b' is not an identifier")
    assert second == "row 3 (key 'PM-1'): reference: is the same as in row 1"
    assert third.startswith("row 4 (key 'PM-4'): notes: ")
    assert "; amount: should be" in third


@pytest.mark.parametrize(("more", "end"), [(1, "and 1 more row"), (3, "and 3 more rows")])
def test_a_long_list_of_mistakes_ends(more, end):
    rows = [row(property="") for _ in range(MAX_PROBLEMS + more)]

    message = error_of(rows)

    assert message.split("\n")[MAX_PROBLEMS:] == [end]


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
        ({"customerRef": "amount"}, NO_FIELD.format("customerRef")),
        ({"extra_fields.": "amount"}, NO_FIELD.format("extra_fields.")),
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
