"""Jobs from the rows of a table, as a CSV file, a database or a DataFrame has them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import EXTRA_FIELDS, JOB_FIELDS, JobRequest, parse_payload
from fsm_provider.api.redaction import printable
from fsm_provider.api.validation import (
    INTEGER_AS_FLOAT,
    MISSING_AS_TEXT,
    JsonObject,
    canonical_id,
    parse_params,
    pluralize,
    visible_text,
)

MAX_DECIMALS = 6  # of a float that somebody may have written; 0.1 + 0.2 has more
MAX_PROBLEMS = 50  # rows that an error describes
MAX_SHOWN_KEY = 80  # characters
MAX_LISTED = 300  # characters of the table's columns that it lists

Field = tuple[str, ...]
"""The place of a cell in a job's request, e.g. ``("job", "quotedAmount")``."""
KEY: Field = ("key",)
PROPERTY: Field = ("property_id",)
NOTES: Field = ("job", "notes")
PRIORITY: Field = ("job", "priority")
REFERENCE: Field = ("job", "customerReference")
ANY_JSON: tuple[Field, ...] = (("job", "skills"), ("job", EXTRA_FIELDS))
"""Fields, or the objects that hold them, whose values may be any JSON."""

_NO_VALUE = {word.casefold() for word in (*MISSING_AS_TEXT, "N/A", "NA")}
_SPREADSHEET_ERROR = re.compile(r"#(N/A|[A-Z0-9/_]+[!?]|##+)")
# By which a table keeps Excel from taking a text for a number.
_TEXT_FORMULA = re.compile('="((?:[^"]|"")*)"')
# A number in scientific notation.
_SHORTENED = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?E\+[0-9]+", re.IGNORECASE)


def jobs_from_rows(
    rows: Any, *, key: str, property_id: str, map: Mapping[str, str], start: int = 1
) -> list[JsonObject]:
    """Make jobs of the rows of a table.

    They are for :class:`~fsm_provider.operators.jobs.FsmCreateJobsOperator`. ``7.0`` is the
    integer 7, ``="007"`` the text ``007``, and a field whose cell is empty, NaN or a text such as
    ``None`` is not sent. Rows without any value at the end are ignored. Refused are a date, a float
    that is not exact, a number that a spreadsheet has shortened (``1E+05``), an error such as
    ``#N/A``, a column that the table has twice, and a quote in CSV that stays open.

    :param rows: mappings from column to cell, such as a ``csv.DictReader`` or rows of a database;
        or a DataFrame of pandas or Polars, whose index is no column.
    :param key: the column of the job's key, which is different in each row.
    :param property_id: the column of the property's identifier.
    :param map: the column of each field of the job; the field by the service's name
        (``customerReference``), in snake_case, or as ``extra_fields.<name>``.
    :param start: the number of the first row after the header, for messages.
    :return: ``{"property_id": ..., "job": {...}, "key": ...}`` for each row, in order.
    :raises FsmInputError: a ``ValueError`` with a line for each wrong row, with its number and its
        key; all are checked.
    """
    columns = _columns_by_field(key, property_id, map)
    jobs = []
    problems = []
    first_rows: dict[str, int] = {}
    mappings = list(_mappings(rows, columns.values(), start))
    while mappings and _is_blank(mappings[-1]):
        mappings.pop()
    for number, row in enumerate(mappings, start):
        job, problems_of_row = _job_from(row, columns)
        job_key = job.get("key")
        if job_key is not None:
            first = first_rows.setdefault(visible_text(job_key), number)
            if first != number:
                problems_of_row.append(f"{key}: is the same as in row {first}")
        if problems_of_row:
            shown_key = "" if job_key is None else f" (key {job_key[:MAX_SHOWN_KEY]!r})"
            problems.append(f"row {number}{shown_key}: {'; '.join(problems_of_row)}")
        jobs.append(job)
    not_shown = len(problems) - MAX_PROBLEMS
    if not_shown > 0:
        problems = [*problems[:MAX_PROBLEMS], f"and {pluralize(not_shown, 'more row')}"]
    if problems:
        raise FsmInputError("\n".join(problems))
    return jobs


def _columns_by_field(key: str, property_id: str, fields: Mapping[str, str]) -> dict[Field, str]:
    columns = {KEY: key, PROPERTY: property_id}
    for name, column in parse_params("map", fields).items():
        field = _field_named(name, column)
        if field in columns:
            raise FsmInputError(f"map: the field '{field[-1]}' is given twice")
        columns[field] = column
    return columns


def _field_named(name: Any, column: Any) -> Field:
    """Return the field of a job that has a name; the column is for the message if there is none."""
    if name in JOB_FIELDS:
        return ("job", JOB_FIELDS[name])
    prefix, _, extra_field = str(name).partition(".")
    if prefix == EXTRA_FIELDS and extra_field:
        return ("job", EXTRA_FIELDS, extra_field)
    advice = f"if the service has one, use '{EXTRA_FIELDS}.{name}'"
    if str(column) in JOB_FIELDS:
        advice += f", or is it the wrong way round: {{'{column}': '{name}'}}?"
    raise FsmInputError(f"map: a job has no field '{name}'; {advice}")


def _mappings(rows: Any, columns: Collection[str], start: int) -> Iterator[Any]:
    """Yield the rows of a table as mappings, once it is known that it has the wanted columns.

    :raises FsmInputError: if it is no such table, or a row of it is no mapping.
    """
    is_no_table = isinstance(rows, str | bytes | Mapping)
    if is_no_table or not isinstance(rows, Iterable):
        raise FsmInputError(
            "rows: should be mappings, such as a csv.DictReader, or a DataFrame, "
            f"not {type(rows).__name__}"
        )
    names, read = _reader_of(rows)
    if names:
        problem = _problem_of_columns(names, columns)
        if problem:
            raise FsmInputError(f"rows: {problem}")
    lines_read = getattr(rows, "line_num", 0)  # those of the header of a csv.DictReader
    for number, row in enumerate(read(), start):
        if not hasattr(row, "keys"):
            raise FsmInputError(
                f"rows: row {number} of the {type(rows).__name__} should be a mapping, "
                f"as dict(zip(columns, row)) is, not {type(row).__name__}"
            )
        if isinstance(rows, csv.DictReader):
            is_of_several_lines = rows.line_num - lines_read > 1
            lines_read = rows.line_num
            if is_of_several_lines:
                _refuse_open_quote(row, number, rows)
        yield row


def _reader_of(table: Any) -> tuple[Any, Callable[[], Any]]:
    """Return the names of a table's columns, None if only its rows have them; and its reader."""
    if hasattr(table, "to_dicts"):  # of Polars
        return list(table.columns), table.to_dicts
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # of pandas
        return list(table.columns), partial(table.to_dict, "records")
    return getattr(table, "fieldnames", None), lambda: table


def _refuse_open_quote(row: Any, number: int, reader: csv.DictReader[Any]) -> None:
    """Refuse a cell of which a line, after its first, has a delimiter between all columns."""
    delimiter = reader.reader.dialect.delimiter
    needed = len(reader.fieldnames or ()) - 1
    for column, cell in row.items():
        lines = cell.splitlines() if isinstance(cell, str) else []
        # Lines that were given without their ends are one.
        suspects = lines[1:] or lines
        if any(line.count(delimiter) >= needed for line in suspects):
            raise FsmInputError(
                f"rows: row {number}: {column}: holds further rows, as if a quote was not closed; "
                "if it is right, give list(rows)"
            )


def _problem_of_columns(names: Collection[Any], columns: Collection[str]) -> str | None:
    """Return what is wrong if not each of the columns is one of the names, and only once."""
    counts = Counter(_trimmed(name) for name in names)
    wanted = dict.fromkeys(columns)
    missing = [str(column) for column in wanted if counts[_trimmed(column)] == 0]
    if missing:
        listed = printable(", ".join(map(str, names)))
        return f"there is no column {', '.join(missing)}, only {listed[:MAX_LISTED]}"
    repeated = [column for column in wanted if counts[_trimmed(column)] > 1]
    if repeated:
        return f"there is more than one column {', '.join(repeated)}"
    return None


def _is_blank(row: Any) -> bool:
    names = list(row.keys())
    return not any(_text_of(row[name]) for name in names)


def _trimmed(column: Any) -> Any:
    """Return a column's name without the blanks and the byte order mark of a CSV file."""
    return column.lstrip("\ufeff").strip() if isinstance(column, str) else column


def _job_from(row: Any, columns: Mapping[Field, str]) -> tuple[JsonObject, list[str]]:
    """Return a row's job, as far as its cells are valid, and what is wrong with the others."""
    names = list(row.keys())  # iterated, a sqlite3.Row gives its values
    if None in names:  # of a csv.DictReader
        return {}, ["has more cells than there are columns"]
    problem = _problem_of_columns(names, columns.values())
    if problem:
        return {}, [problem]
    cells = {_trimmed(name): row[name] for name in names}
    problems = []
    job: JsonObject = {"job": {}}
    for field, column in columns.items():
        try:
            value = _value(cells[_trimmed(column)], field)
        except FsmInputError as error:
            problems.append(f"{column}: {error}")
            continue
        if value is not None:
            _put(job, field, value)
        elif field in (KEY, PROPERTY):
            problems.append(f"{column}: is empty")
    try:
        # A property that is empty or not valid is a problem already, and is not reported twice.
        parse_payload(JobRequest, {"property_id": 0, **job}, "", columns)
    except FsmInputError as error:
        problems.append(str(error))
    return job, problems


def _put(job: JsonObject, field: Field, value: Any) -> None:
    *outer_names, name = field
    holder = job
    for outer_name in outer_names:
        holder = holder.setdefault(outer_name, {})
    holder[name] = value


def _value(cell: Any, field: Field) -> Any:
    """Return what a cell means; None if it is empty."""
    kind = getattr(getattr(cell, "dtype", None), "kind", None)
    is_numpy_scalar = kind in ("b", "i", "u", "f") and cell.shape == ()  # a number or boolean
    if is_numpy_scalar:
        cell = cell.item()
    text = _text_of(cell)
    if not text:
        return None
    if isinstance(cell, float | Decimal):
        cell = _exact_number(cell)
        text = str(cell)
        if field == REFERENCE:  # as the key, which may be of the same column
            return canonical_id(text)
    if type(cell) is int:
        return str(cell) if field in (KEY, NOTES, PRIORITY) else cell
    if isinstance(cell, str):
        return _text(text, field)
    if field[:2] in ANY_JSON and isinstance(cell, bool | list | dict):
        return cell
    hint = ": give its isoformat()" if hasattr(cell, "isoformat") else ""
    raise FsmInputError(f"should be text or a number, not {type(cell).__name__}{hint}")


def _text_of(cell: Any) -> str:
    """Return a cell's text without the blanks around it; empty if the cell has no value."""
    # str() of a member of an enum is its name.
    text = str.strip(cell) if isinstance(cell, str) else str(cell).strip()
    formula = _TEXT_FORMULA.fullmatch(text)
    if formula:
        text = formula[1].replace('""', '"').strip()
    return "" if text in MISSING_AS_TEXT else text


def _exact_number(number: float | Decimal) -> int | str:
    """Return a whole float as an integer, and other numbers as text with all their digits.

    :raises FsmInputError: if it is infinite, or a float that is not exactly what was written.
    """
    exact = Decimal(float.__repr__(number)) if isinstance(number, float) else number
    if not exact.is_finite():
        raise FsmInputError("is infinite")
    if isinstance(number, float):
        if abs(number) >= 2**53:
            raise FsmInputError(
                "is a float of 2**53 or more, which is not exact: read it as integers or text"
            )
        if number.is_integer():
            return int(number)
        decimals = -int(exact.as_tuple().exponent)
        if decimals > MAX_DECIMALS:
            raise FsmInputError(f"has more than {MAX_DECIMALS} decimals: round it")
    return format(exact, "f")


def _text(text: str, field: Field) -> str:
    """Return what the text of a cell means in a field; refuse what a spreadsheet has broken."""
    if _SPREADSHEET_ERROR.fullmatch(text):
        raise FsmInputError("is an error of a spreadsheet")
    is_free_text = field == NOTES or field[:2] in ANY_JSON
    if is_free_text:
        return text
    if _SHORTENED.fullmatch(text):
        raise FsmInputError("is a number in scientific notation, as spreadsheets shorten long ones")
    is_identifier = field in (KEY, PROPERTY) or field[-1].endswith("ID")
    if not is_identifier:
        return text
    if text.casefold() in _NO_VALUE:
        raise FsmInputError("is a word for no value")
    if INTEGER_AS_FLOAT.fullmatch(text):
        return text.partition(".")[0]
    return text
