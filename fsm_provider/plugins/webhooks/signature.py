"""Verify that a delivery was signed with the signing secret, a short time ago."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fsm_provider.plugins.webhooks.settings import (
    MIN_DISTINCT_BYTES,
    MIN_KEY_BYTES,
    STANDARD_WEBHOOKS,
    Scheme,
    WebhookEndpoint,
)

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

MAX_ID_LENGTH = 255
BODY_DIGITS = 32
MAX_SIGNATURES = 16
MAX_SECRETS = 32
_PART = re.compile(r"(\{(?:body|timestamp|id)\})")

Reason = Literal["signature", "timestamp", "headers"]


class RefusedError(Exception):
    """A delivery that is not authentic.

    :param reason: for the log and the metrics; the sender does not learn it.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True)
class DeliveryIdentity:
    """What distinguishes deliveries. A repeat has the key or the digest of an earlier delivery.

    :param key: the identifier and a digest of the body, as senders may number from 1 for each registration;
        without an identifier, the digest.
    :param digest: the digest of what was signed, which stays the same when a delivery is replayed under
        another, unsigned identifier.
    """

    key: str
    digest: str


def verify(
    endpoint: WebhookEndpoint, secrets: Sequence[str], headers: Headers, body: bytes, *, now: float
) -> DeliveryIdentity:
    """Verify a delivery.

    :param secrets: any of them may have signed it; there are several during a rotation.
    :param now: seconds since 1970.
    :raises RefusedError: if it is not authentic.
    """
    if endpoint.scheme is not None:
        identity, timestamp = verify_signature(endpoint.scheme, secrets, headers, body)
        # Only now, so that nobody who cannot sign learns about our clock.
        if timestamp is not None and not _is_recent(endpoint.scheme, timestamp, now):
            raise RefusedError("timestamp")
        return identity
    identifier = _one(headers, endpoint.id_header)
    # Nothing is signed: the same bytes under another identifier are another delivery.
    signed = body if identifier is None else f"{identifier}\0".encode() + body
    return _identity(identifier, body, signed=signed)


def verify_signature(
    scheme: Scheme, secrets: Sequence[str], headers: Headers, body: bytes
) -> tuple[DeliveryIdentity, str | None]:
    """Verify that a delivery was signed with one of the secrets, at whatever time.

    :return: its identity, and the time of sending, if that is signed.
    :raises RefusedError: if it was not.
    """
    header = _one(headers, scheme.header)
    identifier = _one(headers, scheme.id_header)
    if header is None:
        raise RefusedError("headers")
    timestamp = None
    if scheme.timestamp_header is not None:
        timestamp = _timestamp(scheme, headers)
    signed = _signed_content(scheme, body, timestamp=timestamp, identifier=identifier)
    given = [
        decode_signature(text, scheme.encoding) for text in candidates(header, scheme.prefix)[:MAX_SIGNATURES]
    ]
    if scheme == STANDARD_WEBHOOKS and (b"" in given or not _is_utf8(body)):
        # Its own library refuses these too.
        raise RefusedError("signature")
    expected = [
        hmac.digest(key, signed, scheme.algorithm)
        for key in (decode_key(secret, scheme.secret_encoding) for secret in secrets[:MAX_SECRETS])
        if key
    ]
    # Compare every pair, so that the time does not reveal which matches.
    if sum([hmac.compare_digest(one, other) for one in expected for other in given]) < 1:
        raise RefusedError("signature")
    return _identity(identifier, body, signed=signed), timestamp


def _timestamp(scheme: Scheme, headers: Headers) -> str:
    header = _one(headers, scheme.timestamp_header)
    found = candidates(header, scheme.timestamp_prefix) if header is not None else []
    if scheme.timestamp_prefix == "" and header is not None:
        found = [header.strip()]
    if len(found) != 1:
        raise RefusedError("headers")
    return found[0]


def _signed_content(scheme: Scheme, body: bytes, *, timestamp: str | None, identifier: str | None) -> bytes:
    """Return the bytes that are signed.

    :raises RefusedError: if a part of them is missing, or the identifier is empty.
    """
    values = {
        "{body}": body,
        "{timestamp}": None if timestamp is None else timestamp.encode(),
        "{id}": identifier.encode() if identifier else None,
    }
    parts = [values.get(part, part.encode()) for part in _PART.split(scheme.signed)]
    if None in parts:
        raise RefusedError("headers")
    return b"".join(part for part in parts if part is not None)


def candidates(header: str, prefix: str) -> list[str]:
    """Return the values of a header that begin with ``prefix``, without it and without duplicates.

    With a prefix such as ``v1,`` the header is a list such as ``v1,a v2,b``; a malformed list has no values.
    """
    if "," not in prefix:
        parts = header.replace(",", " ").split()
    else:
        parts = header.split(" ")
        if any(part.count(",") != prefix.count(",") for part in parts):
            return []
    return [
        part.removeprefix(prefix)
        for part in dict.fromkeys(parts)
        if part.startswith(prefix) and part != prefix
    ]


def is_strong(scheme: Scheme, secret: str) -> bool:
    """Return whether the key of a secret cannot be guessed. HMAC ignores zeros at the end of a key."""
    key = decode_key(secret, scheme.secret_encoding).rstrip(b"\0")
    return len(key) >= MIN_KEY_BYTES and len(set(key)) >= MIN_DISTINCT_BYTES


def decode_key(secret: str, encoding: str) -> bytes:
    """Return the key of a secret; empty if the secret cannot be decoded."""
    if encoding == "text":
        return secret.encode()
    secret = secret.removeprefix("whsec_")
    try:
        if encoding == "hex":
            return bytes.fromhex(secret)
        digits = secret.rstrip("=")
        padded = digits + "=" * (-len(digits) % 4)
        return base64.b64decode(padded, altchars=b"-_" if encoding == "base64url" else None, validate=True)
    except ValueError:
        return b""


def decode_signature(signature: str, encoding: str) -> bytes:
    """Return the bytes of a signature; empty if it cannot be decoded."""
    try:
        if encoding == "hex":
            return bytes.fromhex(signature)
        return base64.b64decode(signature.encode("ascii"), validate=True)
    except ValueError:
        return b""


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_recent(scheme: Scheme, timestamp: str, now: float) -> bool:
    try:
        if scheme.timestamp_unit == "iso":
            sent = datetime.fromisoformat(timestamp)
            if sent.tzinfo is None:
                return False
            seconds = sent.timestamp()
        elif re.fullmatch(r"[1-9][0-9]{0,15}", timestamp):
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


def _identity(identifier: str | None, body: bytes, *, signed: bytes) -> DeliveryIdentity:
    digest = f"sha256:{hashlib.sha256(signed).hexdigest()}"
    if not identifier:
        return DeliveryIdentity(digest, digest)
    if not is_identifier(identifier):
        raise RefusedError("headers")
    return DeliveryIdentity(f"{identifier} {hashlib.sha256(body).hexdigest()[:BODY_DIGITS]}", digest)


def is_identifier(text: str) -> bool:
    """Return whether a text may be the identifier of a delivery."""
    return len(text) <= MAX_ID_LENGTH and text.isprintable()


def is_any_of(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is among others, in a time that does not depend on where they differ."""
    # Compare digests, since the time of compare_digest reveals lengths.
    digest = hashlib.sha256(text.encode()).digest()
    return sum([hmac.compare_digest(digest, hashlib.sha256(other.encode()).digest()) for other in others]) > 0
