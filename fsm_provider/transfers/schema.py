"""Records as rows: the same columns of the same types, whatever the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from pydantic import AwareDatetime
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from fsm_provider.api.models import Record

EXTRA = "_extra"
"""The last column: JSON of fields without a column, and of values that do not fit theirs."""

Row = list[int | str | None]


class _TypeMismatch(Exception):
    """A value does not have its column's type."""


class Column(NamedTuple):
    """A column.

    :param name: the service's own name; a field of a nested object has that object's name and an
        underscore before it.
    :param path: the attributes that lead to the value, joined by dots.
    :param kind: ``integer`` (64 bits), ``text``, or ``time``: ISO 8601 in UTC with microseconds.
    """

    name: str
    path: str
    kind: str


def _parse_integer(value: Any) -> int:
    if type(value) is not int or value.bit_length() > 63:
        raise _TypeMismatch
    return value


def _parse_text(value: Any) -> str:
    if type(value) is not str:
        raise _TypeMismatch
    return value


def _parse_time(value: Any) -> str:
    try:
        time: datetime = value.astimezone(UTC)
        return time.isoformat(timespec="microseconds")[:-6] + "Z"
    except (AttributeError, OverflowError):  # text, or a time at the end of the calendar
        raise _TypeMismatch from None


_PARSERS: dict[str, Callable[[Any], int | str]] = {
    "integer": _parse_integer,
    "text": _parse_text,
    "time": _parse_time,
}
_KINDS: dict[Any, str] = {int: "integer", AwareDatetime: "time"}


class Schema:
    """The columns of a kind of record.

    A list of objects has the columns of one of them: :func:`one_of_each` makes a row for each.

    :param model: the class of the records.
    :param without: names of columns to leave out; their values are not in ``_extra`` either.
    """

    def __init__(self, model: type[Record], *, without: Sequence[str] = ()) -> None:
        self._without = frozenset(without)
        columns = [column for column in _columns_for(model) if column.name not in self._without]
        self.columns: list[Column] = [*columns, Column(EXTRA, "", "text")]
        self.names: list[str] = [column.name for column in self.columns]
        self._parsers = {column.name: _PARSERS[column.kind] for column in columns}
        self._in_order = list(self._parsers.values())
        self._values = attrgetter(*(column.path for column in columns))
        nested = {column.path.rpartition(".")[0] for column in columns}
        extras = [f"{path}.__pydantic_extra__".lstrip(".") for path in sorted(nested)]
        self._extras = attrgetter(*extras)

    def row(self, record: Record) -> Row:
        try:
            if not any(self._extras(record)):
                pairs = zip(self._in_order, self._values(record), strict=True)
                return [*(None if value is None else parse(value) for parse, value in pairs), None]
        except (AttributeError, _TypeMismatch):
            pass
        fitting: dict[str, int | str] = {}
        others: dict[str, Any] = {}
        self._sort(record, "", fitting, others)
        extra = (
            to_json(dict(sorted(others.items())), by_alias=True, inf_nan_mode="null").decode()
            if others
            else None
        )
        return [*map(fitting.get, self._parsers), extra]

    def _sort(
        self, record: Record, prefix: str, fitting: dict[str, int | str], others: dict[str, Any]
    ) -> None:
        for attribute, field in type(record).model_fields.items():
            column, value = f"{prefix}{field.alias}", getattr(record, attribute)
            if value is None or column in self._without:
                continue
            if isinstance(value, Record):
                self._sort(value, f"{column}_", fitting, others)
                continue
            try:
                fitting[column] = self._parsers[column](value)
            except (KeyError, _TypeMismatch):
                others[column] = value
        others.update((prefix + name, value) for name, value in (record.model_extra or {}).items())


def one_of_each(record: Record, *lists: str) -> Iterator[Record]:
    """Yield a record for each combination of its lists' elements; an empty list counts as one None.

    :param lists: the attributes that hold the lists.
    """
    copies = [record]
    for name in lists:
        found = getattr(record, name)
        elements = (found or [None]) if isinstance(found, list) else [found]
        copies = [copy.model_copy(update={name: element}) for copy in copies for element in elements]
    yield from copies


def _columns_for(model: type[Record], prefix: str = "", path: str = "") -> Iterator[Column]:
    for attribute, field in model.model_fields.items():
        kind, name = _type_for(field), f"{prefix}{field.alias}"
        if isinstance(kind, type) and issubclass(kind, Record):
            yield from _columns_for(kind, f"{name}_", f"{path}{attribute}.")
        else:
            yield Column(name, f"{path}{attribute}", _KINDS.get(kind, "text"))


def _type_for(field: FieldInfo) -> Any:
    """Return the type of a field's values: X for ``X | None`` or ``list[X] | None``, annotated or not."""
    kind: Any = field.annotation
    while alternatives := get_args(kind):
        kind = alternatives[0]
    return kind
