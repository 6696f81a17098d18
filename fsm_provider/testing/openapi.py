"""The specification's four operations as an OpenAPI 3.1 document (``openapi.json``).

Written by hand from the specification, not from the fake or the client, so that both can be
checked against it. It leaves open what the specification does not show; see its ``description``
and ``x-not-shown``.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def document() -> dict[str, Any]:
    """Load the document; each call returns a new copy."""
    text = resources.files("fsm_provider.testing").joinpath("openapi.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
