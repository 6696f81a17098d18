"""Which signature scheme a captured delivery was signed by: the known ones, tried offline.

The specification shows none (section 6).
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import product
from typing import Any, Literal

from fsm_provider.plugins.webhooks.settings import Scheme
from fsm_provider.plugins.webhooks.signature import RefusedError, candidates, decoded, key_of, signed_content

ALGORITHMS: Mapping[int, Literal["sha1", "sha256", "sha384", "sha512"]] = {
    20: "sha1",
    32: "sha256",
    48: "sha384",
    64: "sha512",
}
SIGNED = (
    "{body}",
    "{timestamp}.{body}",
    "{timestamp}{body}",
    "{timestamp}:{body}",
    "v0:{timestamp}:{body}",
    "{body}{timestamp}",
    "{body}.{timestamp}",
    "{id}.{timestamp}.{body}",
    "{id}{timestamp}{body}",
    "{timestamp}.{id}.{body}",
    "{id}.{body}",
    "{id}{body}",
)
PREFIX = re.compile(r"^([A-Za-z][A-Za-z0-9_-]*[=,:])(?=.)")
STANDARD = ("webhook-id", "webhook-timestamp", "webhook-signature")


def read_headers(text: str) -> list[tuple[str, str]]:
    """Read captured headers: ``Name: value`` lines, also below a request line, or a JSON object.

    :raises ValueError: where there are none.
    """
    if text.lstrip().startswith("{"):
        found = [(str(name), str(value)) for name, value in json.loads(text).items()]
    else:
        lines = [line.partition(":") for line in text.splitlines() if not line.startswith(" ")]
        found = [(name.strip(), value.strip()) for name, colon, value in lines if colon and " " not in name]
    if not found:
        raise ValueError("holds no headers: neither lines of the form Name: value, nor a JSON object")
    return [(name.lower(), value) for name, value in found]


def find(headers: list[tuple[str, str]], body: bytes, secret: str) -> list[Scheme]:
    """Give the schemes by which the delivery is signed with the secret, the plainest first."""
    values = dict(headers)
    found = []
    for scheme in _schemes(values):
        try:
            signed = signed_content(
                scheme,
                body,
                timestamp=_value(values, scheme.timestamp_header, scheme.timestamp_prefix),
                identifier=values.get(scheme.id_header or ""),
            )
        except RefusedError:
            continue
        key = key_of(secret, scheme.secret_encoding)
        expected = hmac.digest(key, signed, scheme.algorithm) if key else b"-"
        given = [decoded(one, scheme.encoding) for one in candidates(values[scheme.header], scheme.prefix)]
        if any(hmac.compare_digest(expected, one) for one in given):
            found.append(scheme)
    return found


def endpoint_of(scheme: Scheme) -> dict[str, Any]:
    """Give the endpoint's settings, as the Variable ``fsm_webhooks`` takes them."""
    is_standard = (
        (scheme.id_header, scheme.timestamp_header, scheme.header) == STANDARD
        and scheme.signed == "{id}.{timestamp}.{body}"
        and (scheme.prefix, scheme.encoding, scheme.algorithm) == ("v1,", "base64", "sha256")
        and scheme.secret_encoding == "base64"  # noqa: S105
    )
    if is_standard:
        return {"signature": "standard-webhooks"}
    return {"signature": scheme.model_dump(exclude_defaults=True)}


def _schemes(values: Mapping[str, str]) -> Iterator[Scheme]:
    identifiers = [None, *(name for name in values if re.search(r"(^|[-_])id$", name))]
    for header, value in values.items():
        for prefix, encoding, algorithm in _signatures(value):
            for signed, identifier, secret_encoding, time in product(
                SIGNED, identifiers, ("text", "base64", "hex"), [None, *_times(values)]
            ):
                if ("{id}" in signed and identifier is None) or ("{timestamp}" in signed) != (
                    time is not None
                ):
                    continue
                if "{id}" not in signed and identifier != identifiers[-1]:
                    continue  # what is not signed need not be tried with each
                timestamp = dict(
                    zip(("timestamp_header", "timestamp_prefix", "timestamp_unit"), time or (), strict=False)
                )
                yield Scheme.model_validate(
                    {
                        "header": header,
                        "prefix": prefix,
                        "encoding": encoding,
                        "algorithm": algorithm,
                        "signed": signed,
                        "id_header": identifier,
                        "secret_encoding": secret_encoding,
                        **timestamp,
                    }
                )


def _signatures(value: str) -> list[tuple[str, str, str]]:
    """Give prefix, encoding and algorithm of what may be a signature in a header, with a prefix first."""
    found: set[tuple[str, str, str]] = set()
    for part in {*value.split(), *(one.strip() for one in value.split(","))}:
        prefix = match[0] if (match := PREFIX.match(part)) else ""
        for before, encoding in product({prefix, ""}, ("hex", "base64")):
            algorithm = ALGORITHMS.get(len(decoded(part.removeprefix(before), encoding)))
            if algorithm:
                found.add((before, encoding, algorithm))
    return sorted(found, reverse=True)


def _times(values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Give header, prefix and unit of what may be the time of sending."""
    found = []
    for header, value in values.items():
        for prefix in ("", *(f"{name}=" for name in ("t", "ts", "timestamp"))):
            text = _value(values, header, prefix) if prefix else value.strip()
            if text and (unit := _unit(text)):
                found.append((header, prefix, unit))
    return found


def _unit(text: str) -> str | None:
    if re.fullmatch(r"1[0-9]{9}", text):
        return "s"
    if re.fullmatch(r"1[0-9]{12}", text):
        return "ms"
    try:
        return "iso" if datetime.fromisoformat(text).tzinfo and not text.isdecimal() else None
    except ValueError:
        return None


def _value(values: Mapping[str, str], header: str | None, prefix: str) -> str | None:
    if header is None or header not in values:
        return None
    if not prefix:
        return values[header].strip()
    found = candidates(values[header], prefix)
    return found[0] if found else None
