"""Verify that a delivery was signed with the signing secret, a short time ago."""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint

Headers = Sequence[tuple[str, str]]
"""Pairs of a header's name, in lower case, and its value."""

MIN_KEY_BYTES = 16
"""Minimum length of a signing secret's key.

A shorter one can be guessed, or is none, such as ``None``.
"""


class DeliveryRefusedError(Exception):
    """A delivery is refused.

    :ivar reason: for the log and the metrics; the sender does not learn it.
    :ivar status: the HTTP status, which is all that the sender learns.
    """

    def __init__(self, reason: str, status: int = 401) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class _SignedDelivery(NamedTuple):
    """A delivery and the signatures that its headers claim for it; nothing is verified yet.

    :ivar signatures: the signatures as text. One of them has to be valid.
    :ivar encoding: of the signatures, ``hex`` or ``base64``.
    :ivar signed: the bytes that were signed.
    :ivar identity: the bytes that tell this delivery from others; those of a repeat are the same.
    :ivar timestamp: the text of the signed time; None if the endpoint's scheme signs no time.
    """

    signatures: list[str]
    encoding: str
    signed: bytes
    identity: bytes
    timestamp: str | None


def verify(
    endpoint: WebhookEndpoint, secrets: Iterable[str], headers: Headers, body: bytes, *, now: float
) -> str:
    """Verify that a delivery is authentic; return a digest that tells it from other deliveries.

    The digest is 64 hexadecimal digits. It is of the delivery's identifier and body under
    ``standard-webhooks``, of what was signed under ``hmac``, and of the body where nothing is
    signed. A repeat has the same digest.

    :param secrets: any of them may have signed it: during a rotation there are several. The caller
        leaves out those whose key is shorter than ``MIN_KEY_BYTES``.
    :param now: seconds since 1970.
    :raises DeliveryRefusedError: with the reason ``headers``, ``signature`` or ``timestamp``.
    """
    if endpoint.signature == "none":
        return hashlib.sha256(body).hexdigest()
    if endpoint.signature == "standard-webhooks":
        delivery = _read_standard_webhook(headers, body)
    else:
        delivery = _read_hmac(endpoint, headers, body)
    keys = [key_from(secret, endpoint) for secret in secrets]
    if not _is_signed_with_any(keys, delivery):
        raise DeliveryRefusedError("signature")
    # Check the time last: nobody who cannot sign learns about our clock.
    timestamp = delivery.timestamp
    if timestamp is not None and not _is_recent(timestamp, endpoint.tolerance, now):
        raise DeliveryRefusedError("timestamp")
    return hashlib.sha256(delivery.identity).hexdigest()


def key_from(secret: str, endpoint: WebhookEndpoint) -> bytes:
    """Return the key that a secret stands for; empty if it cannot be decoded."""
    if endpoint.signature != "standard-webhooks":
        return secret.encode()
    unpadded = secret.removeprefix("whsec_").rstrip("=")
    padding = "=" * (-len(unpadded) % 4)
    return _decode(unpadded + padding, "base64")


def is_any_of(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is among others, in a time that does not reveal where they differ."""
    # Compare digests: the time of compare_digest reveals the lengths of what it compares.
    digest = hashlib.sha256(text.encode()).digest()
    matches = 0
    for other in others:
        other_digest = hashlib.sha256(other.encode()).digest()
        matches += hmac.compare_digest(digest, other_digest)
    return matches > 0


def _read_standard_webhook(headers: Headers, body: bytes) -> _SignedDelivery:
    """Read the headers of https://www.standardwebhooks.com."""
    identifier = _only_value(headers, "webhook-id")
    if "." in identifier:  # what is signed could be divided elsewhere
        raise DeliveryRefusedError("headers")
    timestamp = _only_value(headers, "webhook-timestamp")
    signatures = _only_value(headers, "webhook-signature").split(" ")
    return _SignedDelivery(
        signatures=_without_prefix(signatures, "v1,"),
        encoding="base64",
        signed=f"{identifier}.{timestamp}.".encode() + body,
        # Without the time: a delivery that is sent again has another one. With the identifier's
        # length, so that no other identifier and body give the same bytes.
        identity=f"{len(identifier)} {identifier}.".encode() + body,
        timestamp=timestamp,
    )


def _read_hmac(endpoint: WebhookEndpoint, headers: Headers, body: bytes) -> _SignedDelivery:
    """Read the endpoint's header: signatures, and maybe a time, separated by blanks or commas."""
    header = endpoint.header or ""  # "" cannot be: the settings need it of an hmac
    parts = _only_value(headers, header).replace(",", " ").split()
    timestamp = None
    signed = body
    if endpoint.timestamp_prefix:
        timestamp = _only(_without_prefix(parts, endpoint.timestamp_prefix))
        signed = f"{timestamp}.".encode() + body
    return _SignedDelivery(
        signatures=_without_prefix(parts, endpoint.prefix),
        encoding=endpoint.encoding,
        signed=signed,
        identity=signed,
        timestamp=timestamp,
    )


def _is_signed_with_any(keys: Iterable[bytes], delivery: _SignedDelivery) -> bool:
    signatures = [_decode(text, delivery.encoding) for text in delivery.signatures]
    matches = 0
    # Compare every pair, so that the time does not reveal which one matches.
    for key in keys:
        expected = hmac.digest(key, delivery.signed, "sha256")
        for signature in signatures:
            matches += hmac.compare_digest(expected, signature)
    return matches > 0


def _is_recent(timestamp: str, tolerance: int, now: float) -> bool:
    """Return whether a signed time is at most ``tolerance`` seconds from now, either way."""
    if not re.fullmatch(r"[1-9][0-9]{0,15}", timestamp):
        return False
    return abs(now - int(timestamp)) <= tolerance


def _decode(text: str, encoding: str) -> bytes:
    """Return the bytes that a text encodes; none if it cannot be decoded."""
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _without_prefix(parts: Iterable[str], prefix: str) -> list[str]:
    """Return the parts that begin with a prefix, without it."""
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]


def _only_value(headers: Headers, name: str) -> str:
    return _only([value for header, value in headers if header == name])


def _only(values: list[str]) -> str:
    """Return the value if there is exactly one, and it is not empty."""
    if len(values) != 1 or not values[0]:
        raise DeliveryRefusedError("headers")
    return values[0]
