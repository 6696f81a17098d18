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
from tests.unit.properties.strategies import any_records, kind_for, kinds_for

MODELS = [Form, Job, AssetDynamicField, Webhook]
models = pytest.mark.parametrize("model", MODELS)
zones: st.SearchStrategy[tzinfo] = st.sampled_from(
    [UTC, *map(ZoneInfo, ("Europe/London", "Asia/Kathmandu", "America/St_Johns"))]
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@models
@settings(max_examples=50)
@given(data=st.data(), zone=zones)
def test_any_value_that_came_stands_where_it_was(
    model: type[Record], data: st.DataObject, zone: tzinfo
) -> None:
    assert_nothing_is_lost(model, data.draw(any_records(model)), zone)


def assert_nothing_is_lost(model: type[Record], raw: dict[str, Any], zone: tzinfo) -> None:
    read = parse_record(copy.deepcopy(raw), model, timezone=zone).as_json()

    shown = {wire_name(name) for name in Webhook.model_fields} - {
        "signingSecret"
    }  # another may be a secret
    came = {name: value for name, value in raw.items() if model is not Webhook or name in shown}
    assert stands(model, came, through_json(read), zone), f"{came} became {read}"


def stands(kind: Any, came: Any, read: Any, zone: tzinfo) -> bool:
    """Whether a parsed value equals the received one, up to the documented conversions."""
    if type(came) is type(read) and came == read and not isinstance(came, dict | list):
        return True
    if isinstance(came, dict) and isinstance(read, dict):
        kinds = kinds_for(kind) if isinstance(kind, type) and issubclass(kind, Record) else {}
        return all(
            name in read and stands(kinds.get(name), value, read[name], zone)
            for name, value in came.items()
        ) and all(read[name] is None for name in read.keys() - came.keys())
    if isinstance(came, list) and isinstance(read, list):
        element = kind_for(get_args(kind)[0]) if get_origin(kind) is list else None
        return len(came) == len(read) and all(
            stands(element, *pair, zone) for pair in zip(came, read, strict=True)
        )
    if isinstance(came, bool) or isinstance(read, bool):
        return False
    if kind is int and isinstance(read, int):
        return isinstance(came, int | float | str) and Decimal(came) == read
    if kind is str and isinstance(read, str) and isinstance(came, int | float):
        return type(came)(read) == came
    if kind is AwareDatetime and isinstance(read, str) and isinstance(came, str):
        time = datetime.fromisoformat(came)
        return datetime.fromisoformat(read) == (time if time.tzinfo else time.replace(tzinfo=zone))
    return False
