"""A short name for what is too long or too confidential to be one."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(value: Any, length: int) -> str:
    """Give so many hexadecimal digits that are the same for equal JSON values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
