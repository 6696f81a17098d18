"""Keep secrets out of errors and results, also where the service repeats them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html.entities import html5
from typing import Any

EXCERPT_LENGTH = 300
TOKEN_LENGTH = 16  # characters; a text that is at least this long may be a token
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

    :param confidential: further texts to leave out, of a request whose response holds a secret: if
        the body may contain one in some other notation, nothing is returned.
    """
    text = hide(
        " ".join(body.decode(errors="replace").replace("\0", "").split()), token, *confidential
    )
    if confidential and _MAY_BE_SECRET.search(_SECRET.sub("", text)):
        return ""
    return printable(_SECRET.sub(r"\1***", text)[:EXCERPT_LENGTH])[:EXCERPT_LENGTH]


def hide(text: str, *secrets: str) -> str:
    """Replace secrets, also as JSON, URLs and HTML write them."""
    for secret in secrets:
        if secret in text or "\\" in text or "%" in text or "&" in text:
            text = _written(secret).sub("***", text)
    return text


@lru_cache(maxsize=64)
def _written(secret: str) -> re.Pattern[str]:
    """Match a secret, each character as it is, or as JSON (also inside JSON), a URL or HTML writes
    it.
    """
    pattern = ""
    for character in secret:
        in_url, code = "".join(f"%{byte:02x}" for byte in character.encode()), ord(character)
        named = "".join(
            f"|&{name}" for name, text in html5.items() if text == character and name[-1] == ";"
        )
        others = rf"\\{{1,15}}u{code:04x}|{in_url}|&#0*{code};|&#x0*{code:x};{named}"
        pattern += rf"(?:\\{{0,15}}{re.escape(character)}|(?i:{others}))"
    return re.compile(pattern)


def hide_in(values: Any, *secrets: str) -> Any:
    """Replace secrets in all texts of JSON values, names among them."""

    def hidden(value: Any) -> Any:
        if isinstance(value, str):
            return hide(value, *secrets)
        if isinstance(value, dict):
            return {hide(str(name), *secrets): hidden(one) for name, one in value.items()}
        return [hidden(one) for one in value] if isinstance(value, list) else value

    return hidden(values)


def request_id_in(headers: Mapping[str, str], token: str) -> str | None:
    found = (value for name, value in headers.items() if _REQUEST_ID.search(name))
    return printable(hide(next(found, ""), token))[:EXCERPT_LENGTH] or None


def printable(text: str) -> str:
    """Escape what would leave the line, change its direction or steer a terminal."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
