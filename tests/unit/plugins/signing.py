"""Sign deliveries as a sender does, independently of the code that verifies them."""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

Headers = dict[str, str]
Signer = Callable[[bytes], Headers]


def standard_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


def standard(
    secret: str, body: bytes, *, at: float | None = None, identifier: str = "msg_1"
) -> Headers:
    timestamp = _timestamp(at)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{identifier}.{timestamp}.".encode() + body
    digest = hmac.digest(key, signed, hashlib.sha256)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }


def hexadecimal(
    secret: str, body: bytes, *, header: str = "x-signature", prefix: str = ""
) -> Headers:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {header: prefix + digest}


def timed(secret: str, body: bytes, *, at: float | None = None) -> Headers:
    """``t=...,v1=...``, as payment services write it."""
    timestamp = _timestamp(at)
    signed = timestamp.encode() + b"." + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return {"x-signature": f"t={timestamp},v1={digest}"}


def _timestamp(at: float | None) -> str:
    if at is None:
        at = time.time()
    return str(int(at))
