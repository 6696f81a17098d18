"""Short names for values that are too long or too confidential to be one."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any


def digest_for(value: Any, length: int) -> str:
    """Return ``length`` hexadecimal digits, the same for equal JSON values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


MAX_NAME_BYTES = 255
"""The limit of most storages for the name of a file or folder."""

_HALF_A_CHARACTER = re.compile(r"(%[CD].|%E.(%..)?|%F.(%..){0,2})$")
"""At the end of percent-encoded text, UTF-8 of which bytes are missing: DuckDB refuses such a partition."""


def bounded_name(quoted: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Return the name if it fits into ``max_bytes``, else its beginning and a digest of all of it.

    :param quoted: percent-encoded, hence without ``!``: a shortened name never equals another name.
    """
    encoded = quoted.encode()
    if len(encoded) <= max_bytes:
        return quoted
    end = f"!{digest_for(quoted, 24)}"
    start = encoded[: max_bytes - len(end)].decode(errors="ignore")
    return _HALF_A_CHARACTER.sub("", re.sub("%.?$", "", start)) + end
