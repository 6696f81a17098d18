"""The job or the property that a sensor is given, as an id or as a record."""

import json
from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import seconds_of
from fsm_provider.api.validation import parse_identifier, parse_time


class Identified(NamedTuple):
    """What ``job`` or ``property`` is given: its identifier, and what the record of a job shows.

    :ivar created: when the job was created, ISO 8601.
    :ivar property_id: the property that the job is on.
    """

    identifier: Any = None
    created: str | None = None
    property_id: str | None = None


def identified(name: str, value: Any) -> Identified:
    """Return what an argument names.

    :param name: ``job`` or ``property``.
    :param value: an identifier, or a record, also as JSON or Python's text.
    :raises FsmInputError: if it is a list, or a record without its id.
    """
    value = _parsed_record(value)
    is_single = isinstance(value, str | Mapping)
    if hasattr(value, "__iter__") and not is_single:  # a mapped task's outputs are no list
        raise FsmInputError(
            f"{name}: is a list: each map index of a mapped task gives one. Use "
            f".expand({name}=...), or map a task group"
        )
    if not isinstance(value, Mapping):
        return Identified(value)
    key = f"{name}ID" if f"{name}ID" in value else "id"
    if value.get(key) is None:
        raise FsmInputError(f"{name}: is a record without {name}ID and id")
    if name != "job":
        return Identified(value[key])
    created = None
    property_id = None
    with suppress(FsmInputError):
        property_id = str(parse_identifier("property", value.get("propertyID")))
    if key == "id":  # a record with a jobID, such as a form, has times of its own
        with suppress(FsmInputError):
            created_at = parse_time("since", value.get("createdOnDateTime"))
            is_placeholder = seconds_of(created_at) is None
            created = None if is_placeholder else created_at.isoformat()
    return Identified(value[key], created, property_id)


def _parsed_record(value: Any) -> Any:
    """Return the record that a template has rendered as JSON or Python; others as they are."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        for parse in (json.loads, literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError):
                return parse(value)
    return value
