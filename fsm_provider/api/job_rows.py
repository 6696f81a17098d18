"""Jobs from the rows of a table, as a CSV file, a database or a DataFrame has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import JobCreate, JobRequest, check
from fsm_provider.api.validation import INTEGER_AS_FLOAT, NOTHING

RECORDS_METHODS = ("to_dicts", "to_pylist")
"""Return the rows of a DataFrame of Polars, and of a table of Arrow."""
NUMBERS_ARE_TEXT = ("notes", "priority")
"""Fields of a job for which an integer becomes text."""
EXTRA = "extra_fields"
MAX_DECIMALS = 6
"""Decimals of a float that somebody may have written; 0.1 + 0.2 has more."""
MAX_PROBLEMS = 50
"""Rows that an error describes."""

Field = tuple[str, ...]
"""The place of a cell in a job's request, e.g. ``("job", "quotedAmount")``."""


def jobs_from_rows(rows: Any, *, key: str, property_id: str, map: Mapping[str, str]) -> list[dict[str, Any]]:
    """Make jobs for :class:`~fsm_provider.operators.jobs.FsmCreateJobsOperator` of the rows of a table.

    Cells are taken as they come: ``7.0`` is the integer 7, and a field whose cell is empty, NaN or a text
    such as ``None`` is not sent. All rows are checked before any job is returned.

    :param rows: mappings from column to cell, such as a ``csv.DictReader``; a DataFrame of pandas or Polars;
        an Arrow table.
    :param key: the column of the job's key, which is different in each row.
    :param property_id: the column of the property's identifier.
    :param map: the column of each field of the job; the field by the service's name
        (``customerReference``), in snake_case, or as ``extra_fields.<name>``.
    :return: ``{"property_id": ..., "job": {...}, "key": ...}`` for each row, in order.
    :raises FsmInputError: with a line for each wrong row, which names the columns. Rows count from 1, without
        the header.
    """
    columns: dict[Field, str] = {("key",): key, ("property_id",): property_id}
    columns |= {("job", *_field(name)): column for name, column in map.items()}
    jobs: list[dict[str, Any]] = []
    problems: list[str] = []
    first_rows: dict[str, int] = {}
    for number, row in enumerate(_mappings(rows), 1):
        try:
            job = _job_from(row, columns)
        except FsmInputError as error:
            problems.append(f"row {number}: {error}")
            continue
        first = first_rows.setdefault(job["key"], number)
        if first != number:
            problems.append(f"row {number}: {key}: is the same as in row {first}")
        jobs.append(job)
    if problems:
        if (more := len(problems) - MAX_PROBLEMS) > 0:
            problems[MAX_PROBLEMS:] = [f"and {more} more rows"]
        raise FsmInputError("\n".join(problems))
    return jobs


def _field(name: str) -> Field:
    """Return the place of a field in a job.

    :raises FsmInputError: if a job has no such field.
    """
    if name.startswith(f"{EXTRA}."):
        return EXTRA, name.partition(".")[2]
    for attribute, field in JobCreate.model_fields.items():
        if name in (attribute, field.alias) and name != EXTRA:
            return (str(field.alias),)
    raise FsmInputError(f"map: a job has no field '{name}'; if the service has one, use '{EXTRA}.{name}'")


def _mappings(rows: Any) -> Iterator[Mapping[Any, Any]]:
    for method in RECORDS_METHODS:
        if hasattr(rows, method):
            rows = getattr(rows, method)()
    if hasattr(rows, "to_dict"):
        rows = rows.to_dict("records")
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise FsmInputError(
            f"rows: should be mappings, such as a csv.DictReader, or a DataFrame, not {type(rows).__name__}"
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise FsmInputError(
                f"rows: row {number} should be a mapping from column to cell, not {type(row).__name__}"
            )
        yield row


def _job_from(row: Mapping[Any, Any], columns: Mapping[Field, str]) -> dict[str, Any]:
    if None in row:
        raise FsmInputError("has more cells than there are columns")
    if missing := [column for column in columns.values() if column not in row]:
        raise FsmInputError(f"there is no column {', '.join(missing)}, only {', '.join(map(str, row))}")
    problems: list[str] = []
    request: dict[str, Any] = {"key": "valid", "property_id": 0, "job": {}}
    for field, column in columns.items():
        try:
            value = _value(row[column], field[-1])
            if value is None and field[0] != "job":
                raise FsmInputError("is empty")
        except FsmInputError as error:
            problems.append(f"{column}: {error}")
            continue
        if value is not None:
            *places, name = field
            inner = request
            for place in places:
                inner = inner.setdefault(place, {})
            inner[name] = value
    try:
        check(JobRequest, request, "", columns)
    except FsmInputError as error:
        problems.append(str(error))
    if problems:
        raise FsmInputError("; ".join(problems))
    return request


def _value(cell: Any, field: str) -> Any:
    """Return what a cell means; None if it is empty.

    :raises FsmInputError: if it is a float that is no decimal number.
    """
    if hasattr(cell, "item"):
        cell = cell.item()  # it is of NumPy
    text = str(cell).strip()
    if not text or text in NOTHING:
        return None
    if isinstance(cell, float):
        number = Decimal(repr(cell))
        if not number.is_finite():
            raise FsmInputError("is infinite")
        if cell.is_integer():
            cell = int(cell)
        elif -int(number.as_tuple().exponent) > MAX_DECIMALS:
            raise FsmInputError(f"has more than {MAX_DECIMALS} decimals: round it")
        else:
            return format(number, "f")
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if type(cell) is int:
        return str(cell) if field in ("key", *NUMBERS_ARE_TEXT) else cell
    if not isinstance(cell, str):
        return cell
    is_identifier = field == "property_id" or field.endswith("ID")
    return text.partition(".")[0] if is_identifier and INTEGER_AS_FLOAT.fullmatch(text) else text
