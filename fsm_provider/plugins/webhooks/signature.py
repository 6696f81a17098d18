"""Whether a delivery was made by somebody who knows the signing secret, a short time ago."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fsm_provider.plugins.webhooks.settings import Endpoint, Scheme

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

ID_LENGTH = 255
MOST_SIGNATURES = 16
MOST_SECRETS = 32
_PART = re.compile(r"(\{(?:body|timestamp|id)\})")

Reason = Literal["signature", "timestamp", "headers"]


class RefusedError(Exception):
    """A delivery that is not to be believed.

    :param reason: for the log and the metrics; who sent it is not told.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True)
class Proof:
    """What tells one delivery from another.

    :param key: its identifier, else its digest.
    :param digest: of what was signed: whoever sends it again, under another identifier that is not signed,
        has the same one.
    """

    key: str
    digest: str


def verify(endpoint: Endpoint, secrets: Sequence[str], headers: Headers, body: bytes, *, now: float) -> Proof:
    """Check a delivery.

    :param secrets: several while one takes the place of another; any will do.
    :param now: seconds since 1970.
    :raises RefusedError: where it is not to be believed.
    """
    match endpoint.signature:
        case "none":
            identifier = _one(headers, endpoint.id_header)
            # Nothing is signed: bytes that come again under another identifier are another delivery.
            return _proof(identifier, body if identifier is None else f"{identifier}\0".encode() + body)
        case "standard-webhooks":
            return _verify_standard(secrets, headers, body)
        case scheme:
            return _verify_hmac(scheme, secrets, headers, body, now)


def _verify_standard(secrets: Sequence[str], headers: Headers, body: bytes) -> Proof:
    from standardwebhooks import Webhook

    named = {
        name: _one(headers, name) or "" for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    }
    if not all(named.values()) or named["webhook-signature"].count(" ") >= MOST_SIGNATURES:
        raise RefusedError("headers")
    # Every secret is tried, also after one that fits. The library raises anything for what is malformed.
    if sum([_fits_standard(Webhook, secret, named, body) for secret in secrets[:MOST_SECRETS]]) < 1:
        raise RefusedError("signature")
    signed = f"{named['webhook-id']}.{named['webhook-timestamp']}.".encode() + body
    return _proof(named["webhook-id"], signed)


def _fits_standard(webhook: type, secret: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        webhook(secret).verify(body, headers, json_parse=False)
    except Exception:  # noqa: BLE001
        return False
    return True


def _verify_hmac(scheme: Scheme, secrets: Sequence[str], headers: Headers, body: bytes, now: float) -> Proof:
    header = _one(headers, scheme.header)
    identifier = _one(headers, scheme.id_header)
    if header is None:
        raise RefusedError("headers")
    timestamp = None
    if scheme.timestamp_header is not None:
        timestamp = _timestamp(scheme, headers)
    signed = signed_content(scheme, body, timestamp=timestamp, identifier=identifier)
    given = [decoded(one, scheme.encoding) for one in candidates(header, scheme.prefix)[:MOST_SIGNATURES]]
    expected = [
        hmac.digest(key, signed, scheme.algorithm)
        for key in (key_of(secret, scheme.secret_encoding) for secret in secrets[:MOST_SECRETS])
        if key
    ]
    # Every pair is compared, so that the time says nothing of which.
    if sum([hmac.compare_digest(one, other) for one in expected for other in given]) < 1:
        raise RefusedError("signature")
    # Only now: who cannot sign learns nothing of our clock.
    if timestamp is not None and not _is_recent(scheme, timestamp, now):
        raise RefusedError("timestamp")
    return _proof(identifier, signed)


def _timestamp(scheme: Scheme, headers: Headers) -> str:
    header = _one(headers, scheme.timestamp_header)
    found = candidates(header, scheme.timestamp_prefix) if header is not None else []
    if scheme.timestamp_prefix == "" and header is not None:
        found = [header.strip()]
    if len(found) != 1:
        raise RefusedError("headers")
    return found[0]


def signed_content(scheme: Scheme, body: bytes, *, timestamp: str | None, identifier: str | None) -> bytes:
    """Put together what is signed.

    :raises RefusedError: where a part of it is missing.
    """
    values = {
        "{body}": body,
        "{timestamp}": None if timestamp is None else timestamp.encode(),
        "{id}": None if identifier is None else identifier.encode(),
    }
    parts = [values.get(part, part.encode()) for part in _PART.split(scheme.signed)]
    if None in parts:
        raise RefusedError("headers")
    return b"".join(part for part in parts if part is not None)


def candidates(header: str, prefix: str) -> list[str]:
    """Give the values of a header that begin with ``prefix``, without it; each once."""
    parts = dict.fromkeys((header if "," in prefix else header.replace(",", " ")).split())
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix) and part != prefix]


def key_of(secret: str, encoding: str) -> bytes:
    """Give the key that a secret stands for; empty where it cannot be read."""
    if encoding == "text":
        return secret.encode()
    secret = secret.removeprefix("whsec_")
    try:
        if encoding == "hex":
            return bytes.fromhex(secret)
        return base64.b64decode(secret.replace("-", "+").replace("_", "/") + "==", validate=False)
    except ValueError:
        return b""


def decoded(signature: str, encoding: str) -> bytes:
    """Give the bytes of a signature; empty where it cannot be read."""
    try:
        if encoding == "hex":
            return bytes.fromhex(signature)
        return base64.b64decode(signature.encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        return b""


def _is_recent(scheme: Scheme, timestamp: str, now: float) -> bool:
    try:
        if scheme.timestamp_unit == "iso":
            sent = datetime.fromisoformat(timestamp)
            if sent.tzinfo is None:
                return False
            seconds = sent.timestamp()
        elif re.fullmatch(r"[0-9]{1,16}", timestamp):
            seconds = int(timestamp) / (1000 if scheme.timestamp_unit == "ms" else 1)
        else:
            return False
    except (ValueError, OverflowError, OSError):
        return False
    return abs(now - seconds) <= scheme.tolerance


def _one(headers: Headers, name: str | None) -> str | None:
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise RefusedError("headers")
    return found[0] if found else None


def _proof(identifier: str | None, signed: bytes) -> Proof:
    digest = f"sha256:{hashlib.sha256(signed).hexdigest()}"
    if identifier and (len(identifier) > ID_LENGTH or not identifier.isprintable()):
        raise RefusedError("headers")
    return Proof(identifier or digest, digest)


def same_text(one: str, others: Iterable[str]) -> bool:
    """Tell whether a text is among others, in a time that does not depend on where they differ."""
    # As digests, since compare_digest shows the length of what it compares.
    digest = hashlib.sha256(one.encode()).digest()
    return sum([hmac.compare_digest(digest, hashlib.sha256(other.encode()).digest()) for other in others]) > 0
