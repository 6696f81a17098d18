"""What a service may send: JSON, and records of a model with any of their fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import AwareDatetime, SecretStr

from fsm_provider.api.models import Record, wire_name

# What Hypothesis would hardly hit upon: names that mean something here, or to pydantic.
_NAMES = [
    "id",
    "data",
    "jobID",
    "form_name",
    "values",
    "self",
    "bool",
    "int",
    "str",
    "model_fields",
    "",
]
_TEXTS = [
    "null",
    "true",
    "0",
    "1.50",
    "007",
    "2026-01-31T08:00:00.000Z",
    "2026-01-31 08:00:00",
    "None",
]

_any_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts: st.SearchStrategy[str] = st.sampled_from(_TEXTS) | _any_texts
names: st.SearchStrategy[str] = st.sampled_from(_NAMES) | texts
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.integers(10**20, 10**40)
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)


json_values: st.SearchStrategy[Any] = st.recursive(scalars, _containers, max_leaves=6)

_offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# Before 1972 there were zones whose offsets have seconds, which ISO 8601 cannot write.
times: st.SearchStrategy[datetime] = st.datetimes(
    datetime(1972, 1, 2), timezones=st.just(UTC) | _offsets
)


def _as_the_service_writes(time: datetime) -> str:
    with_microseconds = f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"
    return with_microseconds[:-3] + "Z"


time_texts: st.SearchStrategy[str] = st.one_of(
    times.map(datetime.isoformat),
    times.map(_as_the_service_writes),
    times.map(lambda time: f"{time:%Y-%m-%d %H:%M:%S}"),
)


def kind_for(annotation: Any) -> Any:
    """Remove ``Annotated`` and ``| None``."""
    if get_origin(annotation) is Annotated:
        return kind_for(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        [other] = set(get_args(annotation)) - {type(None)}
        return kind_for(other)
    return annotation


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def kinds_for(model: type[Record]) -> dict[str, Any]:
    """Return the types of a model's fields by their wire names."""
    fields = model.model_fields.items()
    return {wire_name(name): kind_for(field.annotation) for name, field in fields}


def valid_values(kind: Any) -> st.SearchStrategy[Any]:
    """Make values of a field's type as they stand in JSON."""
    if is_record(kind):
        return valid_records(kind)
    if get_origin(kind) is list:
        return st.lists(valid_values(kind_for(get_args(kind)[0])), max_size=3)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    by_kind: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(),
        str: texts,
        bool: st.booleans(),
        SecretStr: texts,
        AwareDatetime: times.map(datetime.isoformat),
    }
    return by_kind[kind]


@st.composite
def valid_records(draw: st.DrawFn, model: type[Record]) -> dict[str, Any]:
    """Make a record that is as specified: some of its fields, and unknown ones."""
    return draw(_records(model, valid_values))


def any_values(kind: Any) -> st.SearchStrategy[Any]:
    """Make values of any type, the right one among them, for a field."""
    if is_record(kind):
        return any_records(kind) | json_values
    if get_origin(kind) is list:
        elements = any_values(kind_for(get_args(kind)[0]))
        return st.lists(elements, max_size=3) | json_values
    if kind is AwareDatetime:
        return time_texts | json_values
    return valid_values(kind) | json_values


@st.composite
def any_records(draw: st.DrawFn, model: type[Record]) -> dict[str, Any]:
    """Make a record with anything in its optional fields."""
    return draw(_records(model, any_values))


@st.composite
def _records(draw: st.DrawFn, model: type[Record], values: Any) -> dict[str, Any]:
    """Make a record with some of a model's fields, and unknown ones."""
    kinds = kinds_for(model)
    unknown_names = names.filter(lambda name: name not in kinds)
    record = draw(st.dictionaries(unknown_names, json_values, max_size=2))
    known_names = st.sampled_from(sorted(kinds))
    for name in draw(st.lists(known_names, max_size=5, unique=True)):
        record[name] = draw(values(kinds[name]))
    for name, field in model.model_fields.items():
        if field.is_required():
            record[wire_name(name)] = draw(st.integers())
    return record
