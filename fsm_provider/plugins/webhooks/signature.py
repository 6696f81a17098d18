"""Verify that a delivery was signed with the signing secret, a short time ago."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fsm_provider.plugins.webhooks.settings import HmacSignature, WebhookEndpoint

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

MIN_KEY_BYTES = 16
"""Minimum length of a decoded signing secret: a shorter one can be guessed, or is none, such as ``None``."""
MIN_DISTINCT_BYTES = 5
"""Minimum distinct bytes of a decoded signing secret: sixteen asterisks are no secret."""
STANDARD_TOLERANCE = 300
MAX_ID_LENGTH = 255
BODY_DIGITS = 32
MAX_SIGNATURES = 16
MAX_SECRETS = 32

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
    :param digest: the digest of what was signed.
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
    scheme = endpoint.signature
    if isinstance(scheme, HmacSignature):
        return _verify_hmac(scheme, secrets, headers, body, now=now)
    if scheme == "standard-webhooks":
        return _verify_standard_webhooks(secrets, headers, body, now=now)
    identifier = _one(headers, endpoint.id_header)
    # Nothing is signed: the same bytes under another identifier are another delivery.
    return _identity(
        identifier, body, signed=body if identifier is None else f"{identifier}\0".encode() + body
    )


def _verify_standard_webhooks(
    secrets: Sequence[str], headers: Headers, body: bytes, *, now: float
) -> DeliveryIdentity:
    """Verify as https://www.standardwebhooks.com describes; its own library accepts all that this does."""
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    identifier, timestamp, listed = (_one(headers, name) for name in names)
    if not identifier or timestamp is None or listed is None:
        raise RefusedError("headers")
    parts = listed.split(" ")
    given = [_decode_base64(part[3:]) for part in _beginning_with("v1,", parts)]
    if any(part.count(",") != 1 for part in parts) or b"" in given or not _is_utf8(body):
        raise RefusedError("signature")
    signed = f"{identifier}.{timestamp.strip()}.".encode() + body
    _require_signature(map(_standard_key, secrets[:MAX_SECRETS]), signed, given)
    _require_recent(timestamp.strip(), STANDARD_TOLERANCE, now)
    return _identity(identifier, body, signed=signed)


def _verify_hmac(
    scheme: HmacSignature, secrets: Sequence[str], headers: Headers, body: bytes, *, now: float
) -> DeliveryIdentity:
    header = _one(headers, scheme.header)
    if header is None:
        raise RefusedError("headers")
    parts, signed, timestamp = header.replace(",", " ").split(), body, None
    if scheme.timestamp_prefix:
        times = _beginning_with(scheme.timestamp_prefix, parts)
        if len(times) != 1:
            raise RefusedError("headers")
        timestamp = times[0].removeprefix(scheme.timestamp_prefix)
        signed = f"{timestamp}.".encode() + body
    decode = _decode_hex if scheme.encoding == "hex" else _decode_base64
    given = [decode(part.removeprefix(scheme.prefix)) for part in _beginning_with(scheme.prefix, parts)]
    _require_signature((secret.encode() for secret in secrets[:MAX_SECRETS]), signed, given)
    if timestamp is not None:
        _require_recent(timestamp, scheme.tolerance, now)
    return _identity(None, body, signed=signed)


def _beginning_with(prefix: str, parts: Sequence[str]) -> list[str]:
    found = [part for part in dict.fromkeys(parts) if part.startswith(prefix) and part != prefix]
    return found[:MAX_SIGNATURES]


def _require_signature(keys: Iterable[bytes], signed: bytes, given: Sequence[bytes]) -> None:
    expected = [hmac.digest(key, signed, "sha256") for key in keys if key]
    # Compare every pair, so that the time does not reveal which matches.
    if sum([hmac.compare_digest(one, other) for one in expected for other in given]) < 1:
        raise RefusedError("signature")


def _require_recent(timestamp: str, tolerance: int, now: float) -> None:
    """Check the time, after the signature: nobody who cannot sign learns about our clock."""
    if not re.fullmatch(r"[1-9][0-9]{0,15}", timestamp) or abs(now - int(timestamp)) > tolerance:
        raise RefusedError("timestamp")


def is_strong(endpoint: WebhookEndpoint, secret: str) -> bool:
    """Return whether the key of a secret cannot be guessed. HMAC ignores zeros at the end of a key."""
    key = _standard_key(secret) if endpoint.signature == "standard-webhooks" else secret.encode()
    key = key.rstrip(b"\0")
    return len(key) >= MIN_KEY_BYTES and len(set(key)) >= MIN_DISTINCT_BYTES


def _standard_key(secret: str) -> bytes:
    digits = secret.removeprefix("whsec_").rstrip("=")
    return _decode_base64(digits + "=" * (-len(digits) % 4))


def _decode_base64(text: str) -> bytes:
    """Return the bytes; none if it cannot be decoded."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        return b""


def _decode_hex(text: str) -> bytes:
    """Return the bytes; none if it cannot be decoded."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one(headers: Headers, name: str | None) -> str | None:
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise RefusedError("headers")
    return found[0] if found else None


def _identity(identifier: str | None, body: bytes, *, signed: bytes) -> DeliveryIdentity:
    digest = f"sha256:{hashlib.sha256(signed).hexdigest()}"
    if not identifier:
        return DeliveryIdentity(digest, digest)
    if len(identifier) > MAX_ID_LENGTH or not identifier.isprintable():
        raise RefusedError("headers")
    return DeliveryIdentity(f"{identifier} {hashlib.sha256(body).hexdigest()[:BODY_DIGITS]}", digest)


def is_any_of(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is among others, in a time that does not depend on where they differ."""
    # Compare digests, since the time of compare_digest reveals lengths.
    digest = hashlib.sha256(text.encode()).digest()
    return sum([hmac.compare_digest(digest, hashlib.sha256(other.encode()).digest()) for other in others]) > 0
