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

texts: st.SearchStrategy[str] = st.sampled_from(_TEXTS) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)
names: st.SearchStrategy[str] = st.sampled_from(_NAMES) | texts
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.integers(10**20, 10**40)
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)

_offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# Before 1972 there were zones whose offsets have seconds, which ISO 8601 cannot write.
times: st.SearchStrategy[datetime] = st.datetimes(
    datetime(1972, 1, 2), timezones=st.just(UTC) | _offsets
)
time_texts: st.SearchStrategy[str] = st.one_of(
    times.map(datetime.isoformat),
    times.map(lambda time: f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"),
    times.map(lambda time: f"{time:%Y-%m-%d %H:%M:%S}"),
)


def kind_for(annotation: Any) -> Any:
    """Remove ``Annotated`` and ``| None``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            [annotation] = [one for one in get_args(annotation) if one is not type(None)]
        else:
            return annotation


def kinds_for(model: type[Record]) -> dict[str, Any]:
    """Give the fields of a model by their wire names, each with its type."""
    return {
        wire_name(name): kind_for(field.annotation) for name, field in model.model_fields.items()
    }


def valid_values(kind: Any) -> st.SearchStrategy[Any]:
    """Make values of a field's type as they stand in JSON."""
    if isinstance(kind, type) and issubclass(kind, Record):
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
    if isinstance(kind, type) and issubclass(kind, Record):
        return any_records(kind) | json_values
    if get_origin(kind) is list:
        return st.lists(any_values(kind_for(get_args(kind)[0])), max_size=3) | json_values
    right = time_texts if kind is AwareDatetime else valid_values(kind)
    return right | json_values


@st.composite
def any_records(draw: st.DrawFn, model: type[Record]) -> dict[str, Any]:
    """Make a record with anything in its optional fields."""
    return draw(_records(model, any_values))


@st.composite
def _records(draw: st.DrawFn, model: type[Record], values: Any) -> dict[str, Any]:
    kinds = kinds_for(model)
    required = {
        wire_name(name) for name, field in model.model_fields.items() if field.is_required()
    }
    present = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=5, unique=True))
    record = draw(
        st.dictionaries(names.filter(lambda name: name not in kinds), json_values, max_size=2)
    )
    for name in present:
        record[name] = draw(values(kinds[name]))
    for name in required:
        record[name] = draw(st.integers())
    return record
