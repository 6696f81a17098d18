"""Digests of what identifies things: the same for equal JSON values, on every machine."""

import hashlib
import json
from typing import Any

DIGITS = 32
"""Hexadecimal digits of a digest: 128 bits."""


def digest_for(value: Any, length: int = DIGITS) -> str:
    """Return ``length`` hexadecimal digits, the same for equal JSON values.

    :param value: JSON values; others inside it count as their text. The order of an object's names
        does not count.
    """
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
