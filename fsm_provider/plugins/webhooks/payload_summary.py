"""Summarize a payload. Its format is not specified, so type and identifier are only hints."""

from __future__ import annotations

import json
from typing import Any

TYPE_NAMES = ("type", "eventType", "event_type", "event")
ID_NAMES = ("id", "jobID", "propertyID", "assetID", "contractID", "opportunityID", "appointmentID")
PAYLOAD_NAMES = ("data", "payload", "object")
MAX_HINT_LENGTH = 200


def summarize_payload(body: bytes, *, keep_body: bool) -> dict[str, Any]:
    """Return type and identifier if they are found, and the body if it is wanted.

    :param keep_body: include the body, as JSON if it is, else as text.
    """
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    found: dict[str, Any] = {}
    if isinstance(payload, dict):
        inner: dict[str, Any] = next(
            (payload[name] for name in PAYLOAD_NAMES if isinstance(payload.get(name), dict)), {}
        )
        found = {
            "type": _first(TYPE_NAMES, payload),
            "id": _first(ID_NAMES, inner, payload),
        }
    if keep_body:
        # Python accepts NaN and the like as JSON; databases do not.
        found["body"] = payload if _is_strict(payload) else body.decode(errors="replace").replace("\0", "")
    return {name: value for name, value in found.items() if value is not None}


def _first(names: tuple[str, ...], *records: dict[str, Any]) -> str | int | None:
    for record in records:
        for name in names:
            value = record.get(name)
            if isinstance(value, str) and 0 < len(value) <= MAX_HINT_LENGTH and value.isprintable():
                return value
            if type(value) is int and abs(value) < 2**63:
                return value
    return None


def _is_strict(payload: Any) -> bool:
    if payload is None:
        return False
    try:
        # A lone surrogate cannot be encoded, which is a ValueError too.
        text = json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return b"\\u0000" not in text
