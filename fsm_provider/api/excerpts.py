"""The parts of a failed response that errors quote, without the secrets that it may repeat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

EXCERPT_LENGTH = 300
_SECRET = re.compile(
    r"""
    (secret s? (?: \[\w*\] )? \\{0,15} ["']? [ ]? (?: [:=] [ ]? | (?: [ ] [^<>]{0,200} )? > ) )
    (?: [ ]? <!\[CDATA\[ .*? (?: \]\]> | \Z )        # XML
      | ( \\{0,15} ["'] ) .*? (?<! \\ ) \2           # text, also of JSON inside JSON
      | [\[{(\\"'] .*                                # several values, or text that is cut off
      | [^&<}]* )                                    # a number, a form, XML
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A key that ends in ``secret`` in JSON, a form or XML, and its value."""
_MAY_BE_SECRET = re.compile("secret|whsec", re.IGNORECASE)
_REQUEST_ID = re.compile(r"(request|correlation|trace)-?id", re.IGNORECASE)


def excerpt(body: bytes, token: str, confidential: Iterable[str] = ()) -> str:
    """Return the start of a response's body.

    :param confidential: further texts to leave out, of a request whose response holds a secret: nothing is
        returned if the body may contain one in some other notation.
    """
    text = " ".join(body.decode(errors="replace").replace("\0", "").split())
    text = hide(text, token, *confidential)
    if confidential and _MAY_BE_SECRET.search(_SECRET.sub("", text)):
        return ""
    return _SECRET.sub(r"\1***", text)[:EXCERPT_LENGTH]


def hide(text: str, *secrets: str) -> str:
    """Replace secrets, also as JSON and URLs write them."""
    for secret in secrets:
        for written in (secret, secret.replace("/", "\\/"), quote(secret, safe="")):
            text = text.replace(written, "***")
    return text


def hide_in(values: Any, *secrets: str) -> Any:
    """Replace secrets in all texts of JSON values, names among them."""
    if isinstance(values, str):
        return hide(values, *secrets)
    if isinstance(values, dict):
        return {hide(str(name), *secrets): hide_in(value, *secrets) for name, value in values.items()}
    return [hide_in(value, *secrets) for value in values] if isinstance(values, list) else values


def request_id_in(headers: Mapping[str, str], token: str) -> str | None:
    """Return the first header that is named like a request identifier, such as ``X-Request-ID``."""
    found = (value for name, value in headers.items() if _REQUEST_ID.search(name))
    return hide(next(found, ""), token)[:EXCERPT_LENGTH] or None
