"""Short names for values that are too long or too confidential to be one."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_for(value: Any, length: int) -> str:
    """Return ``length`` hexadecimal digits, the same for equal JSON values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
