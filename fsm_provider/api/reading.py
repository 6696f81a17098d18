"""Reading what the service sends into records, without losing one to a field of another type.

A body is validated whole, in one call. Only where that fails is it read again, record by record: a
value of an unexpected type stays in its place as it came, and a warning names the field once.
"""

from __future__ import annotations

import logging
from datetime import datetime, tzinfo
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import Page, Record

logger: logging.Logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", bound=Record)
Path = tuple[str | int, ...]
_DATE_TIME = TypeAdapter(datetime)
_warned: set[tuple[str, str]] = set()


@cache
def _page_of(model: type[Record] | None) -> type[Page[Any]]:
    page: Any = Page
    return cast(type[Page[Any]], page[model or Any])


def read_page(body: bytes, model: type[Record] | None, *, number: int, timezone: tzinfo) -> Page[Any]:
    """Read one page of a listing (2.5).

    :param model: what its ``data`` is read into; None leaves it as parsed JSON.
    :param number: the page's number in its listing, from 1, for messages.
    :param timezone: the zone of date-times that carry none.
    :raises FsmResponseError: where it is no page, or a record has no usable identifier.
    """
    try:
        return _page_of(model).model_validate_json(body, context={"timezone": timezone})
    except ValidationError:
        pass
    page = parse_json(body)
    if not isinstance(page, dict) or not isinstance(page.get("data"), list):
        raise FsmResponseError(f"page {number} is no listing: it has no array 'data'")
    records = page["data"]
    envelope = read_record({**page, "data": []}, Page[Any], timezone=timezone, where=f"page {number}")
    envelope.data = (
        records
        if model is None
        else [
            read_record(record, model, timezone=timezone, where=f"page {number}, index {index}")
            for index, record in enumerate(records)
        ]
    )
    return envelope


def parse_json(body: bytes) -> Any:
    """Parse JSON.

    :raises FsmResponseError: saying where it ends to be JSON, quoting none of it.
    """
    try:
        return from_json(body, cache_strings="keys")
    except ValueError as error:
        raise FsmResponseError(f"the body ({len(body)} bytes) is not JSON: {error}") from None


def read_record(raw: Any, model: type[RecordT], *, timezone: tzinfo, where: str = "the body") -> RecordT:
    """Read one record out of parsed JSON, which is used up by it.

    :param where: where the record stood, for messages.
    :raises FsmResponseError: where it is no object or has no usable identifier.
    """
    set_aside: dict[Path, Any] = {}
    while True:
        try:
            record = model.model_validate(raw, context={"timezone": timezone})
            break
        except ValidationError as error:
            outermost_first = sorted(error.errors(), key=lambda detail: len(detail["loc"]))
            for detail in outermost_first:
                _amend(raw, detail, model, timezone, where, set_aside)
    for path, value in set_aside.items():
        _put_back(record, path, value)
    return record


def _amend(
    raw: Any,
    detail: ErrorDetails,
    model: type[Record],
    timezone: tzinfo,
    where: str,
    set_aside: dict[Path, Any],
) -> None:
    loc = detail["loc"]
    if not loc:
        raise FsmResponseError(f"{where} is not an object")
    required = {field.alias for field in model.model_fields.values() if field.is_required()}
    if loc[0] in required:
        raise FsmResponseError(f"{where} has no usable '{loc[0]}': {detail['msg']}")
    if any(loc[: len(path)] == path for path in set_aside):
        return
    holder, path = _innermost_field(raw, loc)
    name = path[-1]
    if detail["type"] == "timezone_aware":
        holder[name] = _DATE_TIME.validate_python(holder[name]).replace(tzinfo=timezone)
        return
    set_aside[path] = holder.pop(name)
    _warn_once(
        model.__name__.partition("[")[0], ".".join(step for step in path if isinstance(step, str)), detail
    )


def _innermost_field(raw: Any, loc: Path) -> tuple[dict[str | int, Any], Path]:
    """Find the object that holds the innermost field on the way to ``loc``, and the field's path."""
    holder: dict[str | int, Any] = raw
    field: Path = loc[:1]
    value: Any = raw
    for depth, step in enumerate(loc, start=1):
        if isinstance(value, dict) and step in value:
            holder, field = value, loc[:depth]
        elif not (isinstance(value, list) and isinstance(step, int)):
            break
        value = value[step]
    return holder, field


def _put_back(record: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        record = record[step] if isinstance(step, int) else getattr(record, _attribute(record, step))
    setattr(record, _attribute(record, path[-1]), value)


def _attribute(record: Record, alias: str | int) -> str:
    return next(name for name, field in type(record).model_fields.items() if field.alias == alias)


def _warn_once(model: str, field: str, detail: ErrorDetails) -> None:
    if (model, field) not in _warned:
        _warned.add((model, field))
        logger.warning(
            "%s.%s came with an unexpected value (%s, of type %s) and is kept as it came; this is said once",
            model,
            field,
            detail["type"],
            type(detail["input"]).__name__,
        )
