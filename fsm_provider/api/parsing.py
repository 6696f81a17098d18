"""Parse responses into records. What is of an unexpected type is kept as received, and logged once.

A body is validated in one call; only if that fails is it parsed again, record by record.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import Page, Record, RecordT, wire_name
from fsm_provider.api.validation import SURROGATE

logger: logging.Logger = logging.getLogger(__name__)

Path = tuple[str | int, ...]
_DATE_TIME = TypeAdapter(datetime)
_logged: set[Hashable] = set()


def warn_once(
    logger: logging.Logger, key: Hashable, message: str, *args: Any, level: int = logging.WARNING
) -> None:
    if key not in _logged:
        _logged.add(key)
        logger.log(level, f"{message}; this is logged once", *args)


def parse_page(
    body: bytes, model: type[Record] | None, *, number: int, timezone: tzinfo
) -> Page[Any]:
    """Parse one page of a listing; without a model, its records stay parsed JSON."""
    if model is not None:
        with suppress(ValidationError):
            page_model: type[Page[Any]] = Page[model]  # type: ignore[valid-type]
            return page_model.model_validate_json(body, context={"timezone": timezone})
    page = parse_json(body)
    if not isinstance(page, dict) or not isinstance(page.get("data"), list):
        raise FsmResponseError(f"page {number} is no listing: it has no array 'data'")
    records = page["data"]
    envelope = parse_record(
        {**page, "data": []}, Page[Any], timezone=timezone, where=f"page {number}"
    )
    if model is not None:
        for index, record in enumerate(records):
            where = f"page {number}, index {index}"
            records[index] = parse_record(record, model, timezone=timezone, where=where)
    envelope.data = records
    return envelope


def parse_json(body: bytes) -> Any:
    """Parse JSON. Invalid text and numbers in it are replaced, and logged once per process."""
    try:
        return from_json(body, cache_strings="keys", allow_inf_nan=False)
    except ValueError as error:
        problem = str(error)
    with suppress(
        ValueError, RecursionError
    ):  # with a BOM, control characters, surrogates, NaN or Infinity
        text = body.decode("utf-8-sig", "replace").replace("\0", "\ufffd")
        text = SURROGATE.sub(
            "\ufffd", json.dumps(json.loads(text, strict=False), ensure_ascii=False)
        )
        value = from_json(to_json(from_json(text), inf_nan_mode="null"))
        replaced = "invalid text was replaced by U+FFFD, NaN and infinite numbers by null"
        warn_once(
            logger, "invalid JSON", f"the service sent invalid JSON (%s): {replaced}", problem
        )
        return value
    # Not inside except: the error before it holds the body.
    raise FsmResponseError(f"the body ({len(body)} bytes) is not JSON: {problem}")


def parse_record(
    raw: Any, model: type[RecordT], *, timezone: tzinfo, where: str = "the body"
) -> RecordT:
    """Build one record from parsed JSON, which is modified; ``where`` is its position, for
    messages.
    """
    set_aside: dict[Path, Any] = {}
    while True:
        try:
            record = model.model_validate(raw, context={"timezone": timezone})
            break
        except ValidationError as error:
            outermost_first = sorted(error.errors(), key=lambda detail: len(detail["loc"]))
        # Not inside except: the error holds the record.
        for detail in outermost_first:
            loc = detail["loc"]
            if not loc:
                raise FsmResponseError(f"{where} is not an object")
            required = [
                wire_name(name) for name, field in model.model_fields.items() if field.is_required()
            ]
            if loc[0] in required:
                raise FsmResponseError(f"{where} has no usable '{loc[0]}': {detail['msg']}")
            if any(loc[: len(path)] == path for path in set_aside):
                continue
            holder, path = _innermost_field(raw, loc)
            if detail["type"] == "timezone_aware":
                time = _DATE_TIME.validate_python(holder[path[-1]])
                holder[path[-1]] = time.replace(tzinfo=timezone)
            else:
                set_aside[path] = holder.pop(path[-1])
                kind = model.__name__.partition("[")[0]
                field = ".".join(step for step in path if isinstance(step, str))
                message = "%s.%s has an unexpected value (%s, of type %s) and is kept as received"
                what = kind, field, detail["type"], type(detail["input"]).__name__
                warn_once(logger, what[:2], message, *what)
    for path, value in set_aside.items():
        parent: Any = record
        for step in path[:-1]:
            parent = (
                parent[step] if isinstance(step, int) else getattr(parent, _attribute(parent, step))
            )
        setattr(parent, _attribute(parent, path[-1]), value)
    return record


def _innermost_field(raw: Any, loc: Path) -> tuple[Any, Path]:
    """Return the object that holds the innermost field on the way to ``loc``, and the field's path."""
    holder, field, value = raw, loc[:1], raw
    for depth, step in enumerate(loc, start=1):
        if isinstance(value, dict) and step in value:
            holder, field = value, loc[:depth]
        elif not (isinstance(value, list) and isinstance(step, int)):
            break
        value = value[step]
    return holder, field


def _attribute(record: Record, alias: str | int) -> str:
    return next(name for name in type(record).model_fields if wire_name(name) == alias)
