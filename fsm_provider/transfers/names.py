"""Names of files and folders that every storage takes."""

from __future__ import annotations

import re

from fsm_provider.state.digest import digest_for

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
