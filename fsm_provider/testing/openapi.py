"""The specification's four operations as an OpenAPI 3.1 document (``openapi.json``).

Written from the specification by hand, not from the fake or the client, so that both can be
checked against it. What the specification does not show is open in it; see its ``description``
and ``x-not-shown``.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def document() -> dict[str, Any]:
    """Read the document; each call gives a copy of one's own."""
    text = resources.files("fsm_provider.testing").joinpath("openapi.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
