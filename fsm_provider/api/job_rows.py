"""Jobs from the rows of a table, as a CSV file, a database or a DataFrame has them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import EXTRA_FIELDS, JOB_FIELDS, JobRequest, check
from fsm_provider.api.redaction import printable
from fsm_provider.api.validation import INTEGER_AS_FLOAT, NOTHING, parse_params, pluralize

MAX_DECIMALS = 6  # of a float that somebody may have written; 0.1 + 0.2 has more
MAX_PROBLEMS = 50  # rows that an error describes
MAX_SHOWN_KEY = 80  # characters
MAX_LISTED = 300  # characters of the table's columns that it lists

Field = tuple[str, ...]  # the place of a cell in a job's request, e.g. ("job", "quotedAmount")
KEY: Field = ("key",)
PROPERTY: Field = ("property_id",)
ANY_JSON: tuple[Field, ...] = (("job", "skills"), ("job", EXTRA_FIELDS))

_NO_VALUE = {word.casefold() for word in (*NOTHING, "N/A", "NA")}
_SPREADSHEET_ERROR = re.compile(r"#(N/A|[A-Z0-9/_]+[!?]|##+)")
_SHORTENED = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?E\+[0-9]+", re.IGNORECASE)


def jobs_from_rows(
    rows: Any, *, key: str, property_id: str, map: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Make jobs for :class:`~fsm_provider.operators.jobs.FsmCreateJobsOperator` of the rows of a
    table.

    ``7.0`` is the integer 7, and a field whose cell is empty, NaN or a text such as ``None`` is not
    sent. Refused are a date, a float that is not exact, a number that a spreadsheet has shortened
    (``1E+05``), an error such as ``#N/A``, a column that the table has twice, and a quote in CSV
    that stays open.

    :param rows: mappings from column to cell, such as a ``csv.DictReader`` or rows of a database;
        or a DataFrame of pandas or Polars, whose index is no column.
    :param key: the column of the job's key, which is different in each row.
    :param property_id: the column of the property's identifier.
    :param map: the column of each field of the job; the field by the service's name
        (``customerReference``), in snake_case, or as ``extra_fields.<name>``.
    :return: ``{"property_id": ..., "job": {...}, "key": ...}`` for each row, in order.
    :raises FsmInputError: a ``ValueError`` with a line for each wrong row, counted from 1 without
        the header, with its key; all are checked.
    """
    columns = _columns(key, property_id, map)
    jobs: list[dict[str, Any]] = []
    problems: list[str] = []
    first_rows: dict[str, int] = {}
    for number, row in enumerate(_mappings(rows, columns.values()), 1):
        job, wrong = _job_from(row, columns)
        if "key" in job and (first := first_rows.setdefault(job["key"], number)) != number:
            wrong.append(f"{key}: is the same as in row {first}")
        if wrong:
            named = f" (key {job['key'][:MAX_SHOWN_KEY]!r})" if "key" in job else ""
            problems.append(f"row {number}{named}: {'; '.join(wrong)}")
        jobs.append(job)
    if (more := len(problems) - MAX_PROBLEMS) > 0:
        problems[MAX_PROBLEMS:] = [f"and {pluralize(more, 'more row')}"]
    if problems:
        raise FsmInputError("\n".join(problems))
    return jobs


def _columns(key: str, property_id: str, fields: Mapping[str, str]) -> dict[Field, str]:
    columns: dict[Field, str] = {KEY: key, PROPERTY: property_id}
    for name, column in parse_params("map", fields).items():
        prefix, _, extra = str(name).partition(".")
        if name not in JOB_FIELDS and (prefix != EXTRA_FIELDS or not extra):
            advice = f"if the service has one, use '{EXTRA_FIELDS}.{name}'"
            if str(column) in JOB_FIELDS:
                advice += f", or is it the wrong way round: {{'{column}': '{name}'}}?"
            raise FsmInputError(f"map: a job has no field '{name}'; {advice}")
        field: Field = (
            ("job", JOB_FIELDS[name]) if name in JOB_FIELDS else ("job", EXTRA_FIELDS, extra)
        )
        if field in columns:
            raise FsmInputError(f"map: the field '{field[-1]}' is given twice")
        columns[field] = column
    return columns


def _mappings(rows: Any, columns: Collection[str]) -> Iterator[Any]:
    table: Any = rows
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        kind = type(rows).__name__
        raise FsmInputError(
            f"rows: should be mappings, such as a csv.DictReader, or a DataFrame, not {kind}"
        )
    is_polars, is_pandas = (
        hasattr(rows, "to_dicts"),
        hasattr(rows, "to_dict") and hasattr(rows, "columns"),
    )
    names = list(table.columns) if is_polars or is_pandas else getattr(rows, "fieldnames", None)
    if names and (problem := _problem_of_columns(names, columns)):
        raise FsmInputError(f"rows: {problem}")
    records = table.to_dicts() if is_polars else table.to_dict("records") if is_pandas else rows
    lines = 0
    for number, row in enumerate(records, 1):
        if not hasattr(row, "keys"):
            wanted = f"should be a mapping, as dict(zip(columns, row)) is, not {type(row).__name__}"
            raise FsmInputError(f"rows: row {number} of the {type(rows).__name__} {wanted}")
        if isinstance(rows, csv.DictReader):
            suspects = row if rows.line_num - lines > 1 else ()
            if column := next((one for one in suspects if _holds_rows(row[one], rows)), None):
                problem = "holds further rows, as if a quote was not closed; if it is right, give list(rows)"
                raise FsmInputError(f"rows: row {number}: {column}: {problem}")
            lines = rows.line_num
        yield row


def _holds_rows(cell: Any, table: csv.DictReader[Any]) -> bool:
    lines = cell.splitlines() if isinstance(cell, str) else []
    delimiter, needed = table.reader.dialect.delimiter, len(table.fieldnames or ()) - 1
    # Lines that were given without their ends are one.
    return any(line.count(delimiter) >= needed for line in lines[1:] or lines)


def _problem_of_columns(names: Collection[Any], columns: Collection[str]) -> str | None:
    found = Counter(map(_trimmed, names))
    counts = {column: found[_trimmed(column)] for column in columns}
    if missing := [str(column) for column, count in counts.items() if not count]:
        listed = printable(", ".join(map(str, names)))
        return f"there is no column {', '.join(missing)}, only {listed[:MAX_LISTED]}"
    if several := [column for column, count in counts.items() if count > 1]:
        return f"there is more than one column {', '.join(several)}"
    return None


def _trimmed(column: Any) -> Any:
    return column.lstrip("\ufeff").strip() if isinstance(column, str) else column


def _job_from(row: Any, columns: Mapping[Field, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a row's job, as far as its cells are valid, and what is wrong with the others."""
    names = list(row.keys())
    if None in names:  # of a csv.DictReader
        return {}, ["has more cells than there are columns"]
    if problem := _problem_of_columns(names, columns.values()):
        return {}, [problem]
    cells = {_trimmed(name): row[name] for name in names}
    problems: list[str] = []
    request: dict[str, Any] = {"job": {}}
    for field, column in columns.items():
        try:
            value = _value(cells[_trimmed(column)], field)
            if value is None and field[0] != "job":
                raise FsmInputError("is empty")
        except FsmInputError as error:
            problems.append(f"{column}: {error}")
            continue
        if value is not None:
            inner = request
            for place in field[:-1]:
                inner = inner.setdefault(place, {})
            inner[field[-1]] = value
    try:
        check(JobRequest, {"property_id": 0, **request}, "", columns)
    except FsmInputError as error:
        problems.append(str(error))
    return request, problems


def _value(cell: Any, field: Field) -> Any:
    """Return what a cell means; None if it is empty."""
    if (
        getattr(getattr(cell, "dtype", None), "kind", None) in ("b", "i", "u", "f")
        and cell.shape == ()
    ):
        cell = cell.item()  # it is of NumPy
    text = str.strip(cell) if isinstance(cell, str) else str(cell).strip()
    if not text or text in NOTHING:
        return None
    if isinstance(cell, float | Decimal):
        cell = text = _number(cell)
    if type(cell) is int:
        return str(cell) if field in (KEY, ("job", "notes"), ("job", "priority")) else cell
    if isinstance(cell, str):
        return _text(text, field)
    if field[:2] in ANY_JSON and isinstance(cell, bool | list | dict):
        return cell
    hint = ": give its isoformat()" if hasattr(cell, "isoformat") else ""
    raise FsmInputError(f"should be text or a number, not {type(cell).__name__}{hint}")


def _number(number: float | Decimal) -> Any:
    exact = Decimal(float.__repr__(number)) if isinstance(number, float) else number
    if not exact.is_finite():
        raise FsmInputError("is infinite")
    if isinstance(number, float):
        if abs(number) >= 2**53:
            advice = "read it as integers or text"
            raise FsmInputError(f"is a float of 2**53 or more, which is not exact: {advice}")
        if number.is_integer():
            return int(number)
        if -int(exact.as_tuple().exponent) > MAX_DECIMALS:
            raise FsmInputError(f"has more than {MAX_DECIMALS} decimals: round it")
    return format(exact, "f")


def _text(text: str, field: Field) -> str:
    if _SPREADSHEET_ERROR.fullmatch(text):
        raise FsmInputError("is an error of a spreadsheet")
    if field[:2] in (("job", "notes"), *ANY_JSON):
        return text
    if _SHORTENED.fullmatch(text):
        raise FsmInputError("is a number in scientific notation, as spreadsheets shorten long ones")
    if field not in (KEY, PROPERTY) and not field[-1].endswith("ID"):
        return text
    if text.casefold() in _NO_VALUE:
        raise FsmInputError("is a word for no value")
    return text.partition(".")[0] if INTEGER_AS_FLOAT.fullmatch(text) else text
