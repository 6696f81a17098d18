"""Verify that a delivery was signed with the signing secret, a short time ago."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

MIN_KEY_BYTES = 16
"""Minimum length of a signing secret's key: a shorter one can be guessed, or is none, such as
``None``.
"""


class DeliveryRefusedError(Exception):
    """A delivery is refused. The reason is for the log and the metrics; the sender learns the
    status only.
    """

    def __init__(self, reason: str, status: int = 401) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


def verify(
    endpoint: WebhookEndpoint, secrets: Iterable[str], headers: Headers, body: bytes, *, now: float
) -> str:
    """Verify a delivery; return a digest of its identifier and body, or of what was signed.

    The digest distinguishes it from other deliveries: a repeat has the same.

    :param secrets: any of them may have signed it; there are several during a rotation.
    :param now: seconds since 1970.
    :raises DeliveryRefusedError: if it is not authentic.
    """
    if endpoint.signature == "none":
        return hashlib.sha256(body).hexdigest()
    if endpoint.signature == "standard-webhooks":
        identifier = _only_value(headers, "webhook-id")
        timestamp = _only_value(headers, "webhook-timestamp")
        parts, prefix, encoding = (
            _only_value(headers, "webhook-signature").split(" "),
            "v1,",
            "base64",
        )
        signed = f"{identifier}.{timestamp}.".encode() + body
        # A delivery that is sent again has another time. With its length, no other identifier reads
        # alike.
        content = f"{len(identifier)} {identifier}.".encode() + body
    else:
        parts = _only_value(headers, endpoint.header or "").replace(",", " ").split()
        prefix, encoding = endpoint.prefix, endpoint.encoding
        timestamp, signed = "", body
        if endpoint.timestamp_prefix:
            timestamp = _only(_beginning_with(endpoint.timestamp_prefix, parts))
            signed = f"{timestamp}.".encode() + body
        content = signed
    expected = [hmac.digest(key_from(secret, endpoint), signed, "sha256") for secret in secrets]
    given = [_decoded(part, encoding) for part in _beginning_with(prefix, parts)]
    # Compare every pair, so that the time does not reveal which matches.
    if not sum([hmac.compare_digest(one, other) for other in given for one in expected]):
        raise DeliveryRefusedError("signature")
    # Check the time last: nobody who cannot sign learns about our clock.
    is_timed = endpoint.signature == "standard-webhooks" or endpoint.timestamp_prefix
    if is_timed and not _is_recent(timestamp, endpoint.tolerance, now):
        raise DeliveryRefusedError("timestamp")
    return hashlib.sha256(content).hexdigest()


def key_from(secret: str, endpoint: WebhookEndpoint) -> bytes:
    """Return the key that a secret stands for; empty if it cannot be decoded."""
    if endpoint.signature != "standard-webhooks":
        return secret.encode()
    digits = secret.removeprefix("whsec_").rstrip("=")
    return _decoded(digits + "=" * (-len(digits) % 4), "base64")


def is_any_of(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is among others, in a time that does not depend on where they differ."""
    # Compare digests, since the time of compare_digest reveals lengths.
    digest = hashlib.sha256(text.encode()).digest()
    return (
        sum(
            [
                hmac.compare_digest(digest, hashlib.sha256(other.encode()).digest())
                for other in others
            ]
        )
        > 0
    )


def _beginning_with(prefix: str, parts: Iterable[str]) -> list[str]:
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]


def _is_recent(timestamp: str, tolerance: int, now: float) -> bool:
    return (
        bool(re.fullmatch(r"[1-9][0-9]{0,15}", timestamp))
        and abs(now - int(timestamp)) <= tolerance
    )


def _decoded(text: str, encoding: str) -> bytes:
    """Return the bytes; none if it cannot be decoded."""
    try:
        return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _only_value(headers: Headers, name: str) -> str:
    return _only([value for key, value in headers if key == name])


def _only(found: list[str]) -> str:
    if len(found) != 1 or not found[0]:
        raise DeliveryRefusedError("headers")
    return found[0]
