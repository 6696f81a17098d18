"""Parses requests, and raises an HTTP error where they do not comply with the specification."""

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
from fsm_provider.testing.wire import JOB_BODY_TYPES, WEBHOOK_OBJECTS, Record, is_integer

EQUAL_FILTERS = (
    "createdByType",
    "createdByID",
    "formCategory",
    "formNameID",
    "propertyID",
    "jobID",
)
LOWER_BOUNDS = ("createdOnDateTime[gte]", "lastUpdatedOnDateTime[gte]")


def parse_json(body: bytes) -> Any:
    """Parse a body; None where it is empty, not JSON, or cannot be serialised again.

    Python parses NaN, infinities, lone surrogates and deep nesting, but cannot send them in a
    response: it would fail with a 500 after the job was stored.
    """
    try:
        parsed = json.loads(body)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return parsed


async def read_job_body(request: Request) -> Record:
    """Read the body of a new job, and check the types of known fields.

    Other fields are accepted.
    """
    content_type, _, _ = request.headers.get("content-type", "").partition(";")
    if content_type != "application/json":
        raise HTTPException(400, "Content-Type must be application/json")
    body = parse_json(await request.body())
    if not isinstance(body, dict):
        raise HTTPException(400, "The body must be a JSON object")
    for name, expected in JOB_BODY_TYPES.items():
        # Not isinstance, for which a boolean is an integer.
        if name in body and type(body[name]) is not expected:
            wanted = "a string" if expected is str else "an integer"
            raise HTTPException(400, f"{name} must be {wanted}")
    return body


def parse_lower_bounds(
    query: QueryParams, parse_time: Callable[[str], datetime]
) -> dict[str, datetime]:
    """Parse the time filters."""
    bounds = {}
    for name in LOWER_BOUNDS:
        if name not in query:
            continue
        text = query[name]
        try:
            bounds[name] = parse_time(text)
        except ValueError as error:
            raise HTTPException(409, f"{name} is not a time: {text!r}") from error
    return bounds


def parse_page_size(query: QueryParams, parameter: str | None, default: int) -> int:
    """Parse the requested page size, if any."""
    if parameter is None or parameter not in query:
        return default
    value = query[parameter]
    if not is_integer(value) or int(value) == 0:
        raise HTTPException(409, f"{parameter} is not a positive integer: {value!r}")
    return int(value)


def parse_webhook(query: QueryParams, style: EventTypesStyle) -> Record:
    """Parse a webhook: of one of six objects, with event types of the form ``<object>.<event>``."""
    object_ = query.get("object", "")
    if object_ not in WEBHOOK_OBJECTS:
        raise HTTPException(409, f"object must be one of {', '.join(WEBHOOK_OBJECTS)}")

    event_types = _event_types(query, style)
    if not event_types:
        raise HTTPException(409, "eventTypes is missing")
    for event_type in event_types:
        if not re.fullmatch(rf"{object_}\.\w+", event_type):
            raise HTTPException(409, f"{event_type!r} is not an event type of {object_}")

    target_url = query.get("targetURL", "")
    if not target_url:
        raise HTTPException(409, "targetURL is missing")
    return {
        "description": query.get("description", ""),
        "object": object_,
        "eventTypes": event_types,
        "targetURL": target_url,
    }


def _event_types(query: QueryParams, style: EventTypesStyle) -> list[str]:
    if style == "brackets":
        return query.getlist("eventTypes[]")
    if style == "comma":
        return query.get("eventTypes", "").split(",")
    if style == "last":
        return query.getlist("eventTypes")[-1:]
    return query.getlist("eventTypes")
