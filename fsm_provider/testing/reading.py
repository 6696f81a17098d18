"""Reading requests: what section 4 says about them, and an error where they do not comply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import HTTPException
from starlette.datastructures import QueryParams
from starlette.requests import Request

from fsm_provider.testing.settings import EventTypesStyle
from fsm_provider.testing.wire import JOB_BODY_TYPES, WEBHOOK_OBJECTS, Record, is_whole_number

EQUAL_FILTERS = (
    "createdByType",
    "createdByID",
    "formCategory",
    "formNameID",
    "propertyID",
    "jobID",
)
LOWER_BOUNDS = ("createdOnDateTime[gte]", "lastUpdatedOnDateTime[gte]")


def parsed_json(body: bytes) -> Any:
    """Parse a body; None where there is none, it isn't JSON, or it can't be written as JSON again.

    Python reads NaN, infinities, lone surrogates and deep nesting, but an answer with them in it
    cannot be sent: without this they would be a 500 after the job was stored.
    """
    try:
        parsed = json.loads(body)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return parsed


async def job_body(request: Request) -> Record:
    """Read the body of section 4.2: each field has its type; other fields are let through."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(400, "Content-Type must be application/json")
    body = parsed_json(await request.body())
    if not isinstance(body, dict):
        raise HTTPException(400, "The body must be a JSON object")
    for name, expected in JOB_BODY_TYPES.items():
        # An exact comparison, as a boolean is an integer to isinstance.
        if name in body and type(body[name]) is not expected:
            wanted = "a string" if expected is str else "an integer"
            raise HTTPException(400, f"{name} must be {wanted}")
    return body


def lower_bounds(query: QueryParams, read_time: Callable[[str], datetime]) -> dict[str, datetime]:
    """Read the time filters of section 4.3."""
    bounds = {}
    for name in LOWER_BOUNDS:
        if name in query:
            try:
                bounds[name] = read_time(query[name])
            except ValueError as error:
                raise HTTPException(409, f"{name} is not a time: {query[name]!r}") from error
    return bounds


def page_size(query: QueryParams, parameter: str | None, default: int) -> int:
    """Read the size of page that is asked for, if any."""
    if parameter is None or parameter not in query:
        return default
    value = query[parameter]
    if not is_whole_number(value) or int(value) == 0:
        raise HTTPException(409, f"{parameter} is not a positive integer: {value!r}")
    return int(value)


def webhook_object(query: QueryParams) -> str:
    """Read the object of section 4.4, one of six."""
    object_ = query.get("object", "")
    if object_ not in WEBHOOK_OBJECTS:
        raise HTTPException(409, f"object must be one of {', '.join(WEBHOOK_OBJECTS)}")
    return object_


def event_types(query: QueryParams, style: EventTypesStyle, object_: str) -> list[str]:
    """Read the event types of section 4.4, all of the form ``<object>.<event>``."""
    if style == "brackets":
        types = query.getlist("eventTypes[]")
    elif style == "comma":
        types = query.get("eventTypes", "").split(",")
    else:
        types = query.getlist("eventTypes")[-1 if style == "last" else 0 :]
    if not types:
        raise HTTPException(409, "eventTypes is missing")
    for event_type in types:
        if not re.fullmatch(rf"{object_}\.\w+", event_type):
            raise HTTPException(409, f"{event_type!r} is not an event type of {object_}")
    return types
