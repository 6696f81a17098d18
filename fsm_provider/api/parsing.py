"""Parse responses into records. What is of an unexpected type is kept as received, and logged once.

A body is validated in one call; only if that fails is it parsed again, record by record.
"""

import json
import logging
from collections.abc import Hashable
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from fsm_provider.api.errors import IF_NO_FORMS, FsmInputError, FsmResponseError
from fsm_provider.api.models import Page, Record, RecordT, wire_name
from fsm_provider.api.validation import SURROGATE, Location, shown

logger: logging.Logger = logging.getLogger(__name__)

EMPTY = (b"", b"null", b"{}")
NO_LISTING = (
    "path: returned one record, and no listing: use FsmRequestOperator, or single=True of "
    "FsmRecordSensor"
)
_DATE_TIME = TypeAdapter(datetime)
_logged: set[Hashable] = set()


def warn_once(
    logger: logging.Logger, key: Hashable, message: str, *args: Any, level: int = logging.WARNING
) -> None:
    if key not in _logged:
        _logged.add(key)
        logger.log(level, f"{message}; this is logged once", *args)


def parse_page(
    body: bytes,
    model: type[Record] | None,
    *,
    number: int,
    timezone: tzinfo,
    may_be_empty: bool = False,
) -> Page[Any]:
    """Parse one page of a listing; without a model, its records stay parsed JSON.

    :param may_be_empty: no body, ``null`` and ``{}`` are a listing without records.
    """
    if model is not None:
        model.model_rebuild()  # before 2.14, pydantic writes no record of a model that is not built
        with suppress(ValidationError):
            page_model = Page[model]  # type: ignore[valid-type]
            return page_model.model_validate_json(body, context={"timezone": timezone})
    if body.strip() in EMPTY:
        if may_be_empty:
            return Page[Any].model_validate({"pagination": {"hasMore": False}, "data": []})
        size = f"the body ({len(body)} bytes) is not JSON with an array 'data'"
        raise FsmResponseError(f"page {number} is no listing: {size}; {IF_NO_FORMS} empty")
    page = parse_json(body)
    if model is None and isinstance(page, dict) and "id" in page:
        raise FsmInputError(NO_LISTING)
    if not isinstance(page, dict) or not isinstance(page.get("data"), list):
        raise FsmResponseError(f"page {number} is no listing: it has no array 'data'")
    records = page["data"]
    envelope = parse_record({**page, "data": []}, Page[Any], timezone, f"page {number}")
    if model is not None:
        for index, record in enumerate(records):
            where = f"page {number}, index {index}"
            records[index] = parse_record(record, model, timezone, where)
    envelope.data = records
    return envelope


def parse_json(body: bytes) -> Any:
    """Parse JSON. Invalid text and numbers in it are replaced, and logged once per process."""
    try:
        return from_json(body, cache_strings="keys", allow_inf_nan=False)
    except ValueError as error:
        problem = str(error)
    with suppress(ValueError, RecursionError):
        value = _parse_invalid_json(body)
        warn_once(
            logger,
            "invalid JSON",
            "the service sent invalid JSON (%s): "
            "invalid text was replaced by U+FFFD, NaN and infinite numbers by null",
            problem,
        )
        return value
    # Not inside except: the error before it holds the body.
    raise FsmResponseError(f"the body ({len(body)} bytes) is not JSON that can be read: {problem}")


def _parse_invalid_json(body: bytes) -> Any:
    """Parse JSON that has a BOM, control characters, surrogates, NaN or Infinity."""
    text = body.decode("utf-8-sig", "replace").replace("\0", "\ufffd")
    rewritten = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    without_surrogates = SURROGATE.sub("\ufffd", rewritten)
    without_infinity = to_json(from_json(without_surrogates), inf_nan_mode="null")
    return from_json(without_infinity)


def parse_record(
    raw: Any, model: type[RecordT], timezone: tzinfo, where: str = "the body"
) -> RecordT:
    """Build one record from parsed JSON, which is modified.

    What the model does not accept is taken out of the JSON and set on the record, as received. A
    time without a zone gets ``timezone``.

    :param where: the JSON's position, for messages.
    :raises FsmResponseError: if it is no object, or lacks a required field.
    """
    set_aside: dict[Location, Any] = {}
    while True:
        try:
            record = model.model_validate(raw, context={"timezone": timezone})
            break
        except ValidationError as error:
            problems = error.errors()
        # Not inside except: the error holds the record.
        # The outermost first: what is set aside takes along what is in it.
        problems.sort(key=lambda problem: len(problem["loc"]))
        for problem in problems:
            _check_usable(problem, model, where)
            location = problem["loc"]
            if any(location[: len(path)] == path for path in set_aside):
                continue
            holder, path = _innermost_field(raw, location)
            name = path[-1]
            if problem["type"] == "timezone_aware":
                time = _DATE_TIME.validate_python(holder[name])
                holder[name] = time.replace(tzinfo=timezone)
            else:
                set_aside[path] = holder.pop(name)
                _warn_of_value(problem, path, model)
    for path, value in set_aside.items():
        _set_as_received(record, path, value)
    return record


def _check_usable(problem: ErrorDetails, model: type[Record], where: str) -> None:
    """Raise an FsmResponseError if there is no record without what is wrong."""
    location = problem["loc"]
    if not location:
        raise FsmResponseError(f"{where} is not an object")
    for attribute, field in model.model_fields.items():
        name = wire_name(attribute)
        if field.is_required() and location[0] == name:
            value = problem["input"]
            is_single = isinstance(value, str | int | float)
            found = f", not {shown(value)}" if is_single else ""
            raise FsmResponseError(f"{where} has no usable '{name}': {problem['msg']}{found}")


def _warn_of_value(problem: ErrorDetails, path: Location, model: type[Record]) -> None:
    kind = model.__name__.partition("[")[0]
    field = ".".join(step for step in path if isinstance(step, str))
    warn_once(
        logger,
        (kind, field),
        "%s.%s has an unexpected value (%s, of type %s) and is kept as received",
        kind,
        field,
        problem["type"],
        type(problem["input"]).__name__,
    )


def _innermost_field(raw: Any, location: Location) -> tuple[Any, Location]:
    """Return the innermost field on the way to ``location``: the object it is in, and its path."""
    holder = raw
    field = location[:1]
    value = raw
    for depth, step in enumerate(location, start=1):
        if isinstance(value, dict) and step in value:
            holder = value
            field = location[:depth]
        elif not isinstance(value, list) or not isinstance(step, int):
            break
        value = value[step]
    return holder, field


def _set_as_received(record: Record, path: Location, value: Any) -> None:
    *steps, last = path
    parent: Any = record
    for step in steps:
        if isinstance(step, int):
            parent = parent[step]
        else:
            parent = getattr(parent, _attribute(parent, step))
    setattr(parent, _attribute(parent, last), value)


def _attribute(record: Record, alias: str | int) -> str:
    """Return the attribute of a record that has a name of the service."""
    return next(name for name in type(record).model_fields if wire_name(name) == alias)
