"""Parsing loses nothing."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any, get_args, get_origin
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime

from fsm_provider.api.models import AssetDynamicField, Form, Job, Record, Webhook, wire_name
from fsm_provider.api.parsing import parse_record
from tests.unit.properties.strategies import any_records, is_record, kind_for, kinds_for

ZONES = [
    UTC,
    ZoneInfo("Europe/London"),
    ZoneInfo("Asia/Kathmandu"),
    ZoneInfo("America/St_Johns"),
]
zones: st.SearchStrategy[tzinfo] = st.sampled_from(ZONES)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@pytest.mark.parametrize("model", [Form, Job, AssetDynamicField, Webhook])
@settings(max_examples=50)
@given(data=st.data(), zone=zones)
def test_any_value_that_came_stands_where_it_was(
    model: type[Record], data: st.DataObject, zone: tzinfo
) -> None:
    assert_nothing_is_lost(model, data.draw(any_records(model)), zone)


def assert_nothing_is_lost(model: type[Record], raw: dict[str, Any], zone: tzinfo) -> None:
    came = raw
    if model is Webhook:
        came = without_possible_secrets(raw)

    read = parse_record(copy.deepcopy(raw), model, timezone=zone).as_json()

    assert stands(model, came, through_json(read), zone), f"{came} became {read}"


def without_possible_secrets(raw: dict[str, Any]) -> dict[str, Any]:
    """Return what a webhook shows: an unknown field may be a secret."""
    shown = {wire_name(name) for name in Webhook.model_fields}
    shown.remove("signingSecret")
    return {name: value for name, value in raw.items() if name in shown}


def stands(kind: Any, came: Any, read: Any, zone: tzinfo) -> bool:
    """Return whether a parsed value equals the received one, up to the documented conversions."""
    if isinstance(came, dict) and isinstance(read, dict):
        return stands_object(kind, came, read, zone)
    if isinstance(came, list) and isinstance(read, list):
        return stands_list(kind, came, read, zone)
    if type(came) is type(read) and came == read:
        return True
    if isinstance(came, bool) or isinstance(read, bool):
        return False
    if kind is int and isinstance(read, int):
        return isinstance(came, int | float | str) and Decimal(came) == read
    if kind is str and isinstance(read, str) and isinstance(came, int | float):
        return type(came)(read) == came
    if kind is AwareDatetime and isinstance(read, str) and isinstance(came, str):
        return is_same_time(came, read, zone)
    return False


def stands_object(kind: Any, came: dict[str, Any], read: dict[str, Any], zone: tzinfo) -> bool:
    kinds = {}
    if is_record(kind):
        kinds = kinds_for(kind)
    for name, value in came.items():
        if name not in read or not stands(kinds.get(name), value, read[name], zone):
            return False
    added = read.keys() - came.keys()
    return all(read[name] is None for name in added)


def stands_list(kind: Any, came: list[Any], read: list[Any], zone: tzinfo) -> bool:
    if len(came) != len(read):
        return False
    element_kind = None
    if get_origin(kind) is list:
        element_kind = kind_for(get_args(kind)[0])
    for came_element, read_element in zip(came, read, strict=True):
        if not stands(element_kind, came_element, read_element, zone):
            return False
    return True


def is_same_time(came: str, read: str, zone: tzinfo) -> bool:
    time = datetime.fromisoformat(came)
    if time.tzinfo is None:
        time = time.replace(tzinfo=zone)
    return datetime.fromisoformat(read) == time
