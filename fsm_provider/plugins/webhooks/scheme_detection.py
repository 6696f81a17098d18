"""Find the signature scheme of a captured delivery, offline, as the specification names none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import product
from typing import Any, Literal

from fsm_provider.plugins.webhooks.settings import STANDARD_WEBHOOKS, Scheme
from fsm_provider.plugins.webhooks.signature import (
    RefusedError,
    candidates,
    decode_signature,
    is_identifier,
    verify_signature,
)

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


def parse_headers(text: str) -> list[tuple[str, str]]:
    """Parse captured headers: ``Name: value`` lines, also below a request line, or a JSON object.

    :raises ValueError: if there are none.
    """
    if text.lstrip().startswith("{"):
        found = [(str(name), str(value)) for name, value in json.loads(text).items()]
    else:
        lines = [line.partition(":") for line in text.splitlines() if not line.startswith(" ")]
        found = [(name.strip(), value.strip()) for name, colon, value in lines if colon and " " not in name]
    if not found:
        raise ValueError("holds no headers: neither lines of the form Name: value, nor a JSON object")
    return [(name.lower(), value) for name, value in found]


def find_schemes(headers: list[tuple[str, str]], body: bytes, secret: str) -> list[Scheme]:
    """Return the schemes by which the receiver finds the delivery signed, the simplest first."""
    # It refuses a delivery in which a header of the scheme occurs twice.
    counts = Counter(name for name, _ in headers)
    values = {name: value for name, value in headers if counts[name] == 1}
    is_url_alphabet = re.search("[-_]", secret.removeprefix("whsec_")) is not None
    secret_encodings = ("text", "base64url" if is_url_alphabet else "base64", "hex")
    found = []
    for scheme in _schemes(values, secret_encodings):
        with suppress(RefusedError):
            verify_signature(scheme, [secret], headers, body)
            found.append(scheme)
    return found


def endpoint_settings(scheme: Scheme) -> dict[str, Any]:
    """Return the endpoint's settings for the Variable ``fsm_webhooks``."""
    if scheme == STANDARD_WEBHOOKS:
        return {"signature": "standard-webhooks"}
    return {"signature": scheme.model_dump(exclude_defaults=True)}


def _schemes(values: Mapping[str, str], secret_encodings: Sequence[str]) -> Iterator[Scheme]:
    identifiers = [
        None,
        *(name for name, value in values.items() if re.search(r"(^|[-_])id$", name) and is_identifier(value)),
    ]
    for header, value in values.items():
        for prefix, encoding, algorithm in _signatures(value):
            for signed, identifier, secret_encoding, time in product(
                SIGNED, identifiers, secret_encodings, [None, *_times(values)]
            ):
                if ("{id}" in signed and identifier is None) or ("{timestamp}" in signed) != (
                    time is not None
                ):
                    continue
                if "{id}" not in signed and identifier != identifiers[-1]:
                    continue  # an unsigned identifier need not be tried
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
    """Return prefix, encoding and algorithm of possible signatures in a header, those with a prefix first."""
    found: set[tuple[str, str, str]] = set()
    for part in {*value.split(), *(one.strip() for one in value.split(","))}:
        prefix = match[0] if (match := PREFIX.match(part)) else ""
        for before, encoding in product({prefix, ""}, ("hex", "base64")):
            algorithm = ALGORITHMS.get(len(decode_signature(part.removeprefix(before), encoding)))
            if algorithm:
                found.add((before, encoding, algorithm))
    return sorted(found, reverse=True)


def _times(values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return header, prefix and unit of possible times of sending."""
    found = []
    for header, value in values.items():
        for prefix in ("", "t=", "ts=", "timestamp="):
            texts = candidates(value, prefix) if prefix else [value.strip()]
            if len(texts) == 1 and (unit := _unit(texts[0])):
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
