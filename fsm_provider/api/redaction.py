"""Keep secrets out of errors and results, also where the service repeats them."""

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
_CODE = rb"(?:3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa])"
"""The code of a letter or digit, in hexadecimal digits."""
_ENCODED_LETTERS = {
    b"\\": rb"\\u00" + _CODE,
    b"%": b"%" + _CODE,
    b"&": b"&#(?:[xX]0*" + _CODE + b"|0*(?:[4-9]|1[0-2])[0-9])",
}
"""By its first character, a letter or digit as JSON, a URL or HTML may write it; few writers do."""


def excerpt(body: bytes, token: str, confidential: Iterable[str] = ()) -> str:
    """Return the start of a response's body, without secrets.

    :param confidential: further texts to leave out, of a request whose response holds a secret: if
        the body may contain one in some other notation, nothing is returned.
    """
    text = body.decode(errors="replace").replace("\0", "")
    on_one_line = " ".join(text.split())
    hidden = hide(on_one_line, token, *confidential)
    if confidential and _MAY_BE_SECRET.search(_SECRET.sub("", hidden)):
        return ""
    start = _SECRET.sub(r"\1***", hidden)[:EXCERPT_LENGTH]
    return printable(start)[:EXCERPT_LENGTH]


def may_hold(body: bytes, token: str) -> bool:
    """Return whether JSON may hold a token, also as JSON, URLs and HTML write it.

    It may if it has the token as it is. Else it needs a backslash, % or &, and with that an escaped
    letter or digit, or, as only other characters may be escaped, the token's longest run of letters
    and digits. A token shorter than ``TOKEN_LENGTH`` may be a part of any text, and is not looked
    for.

    This takes 4 % of the time in which a page is parsed, and 15 to 35 % where it has a backslash, %
    or &. To look for the token as ``hide`` does would take five times that time.
    """
    if len(token) < TOKEN_LENGTH:
        return False
    if token.encode() in body:
        return True
    longest_run = max(re.split("[^0-9A-Za-z]", token), key=len)
    for start, encoded in _ENCODED_LETTERS.items():
        if start in body and (longest_run.encode() in body or re.search(encoded, body)):
            return True
    return False


def hide(text: str, *secrets: str) -> str:
    """Replace secrets, also as JSON, URLs and HTML write them."""
    for secret in secrets:
        may_be_encoded = "\\" in text or "%" in text or "&" in text
        if secret in text or may_be_encoded:
            text = _pattern_for(secret).sub("***", text)
    return text


@lru_cache(maxsize=64)
def _pattern_for(secret: str) -> re.Pattern[str]:
    return re.compile("".join(map(_pattern_for_character, secret)))


def _pattern_for_character(character: str) -> str:
    """Match a character as it is, or as JSON (also inside JSON), a URL or HTML writes it."""
    code = ord(character)
    in_url = "".join(f"%{byte:02x}" for byte in character.encode())
    encoded = [rf"\\{{1,15}}u{code:04x}", in_url, f"&#0*{code};", f"&#x0*{code:x};"]
    for name, text in html5.items():
        if text == character and name.endswith(";"):
            encoded.append(f"&{name}")
    return rf"(?:\\{{0,15}}{re.escape(character)}|(?i:{'|'.join(encoded)}))"


def hide_in(value: Any, *secrets: str) -> Any:
    """Replace secrets in all texts of a JSON value, names among them."""
    if isinstance(value, str):
        return hide(value, *secrets)
    if isinstance(value, list):
        return [hide_in(element, *secrets) for element in value]
    if isinstance(value, dict):
        return {
            hide(str(name), *secrets): hide_in(member, *secrets) for name, member in value.items()
        }
    return value


def request_id_in(headers: Mapping[str, str], token: str) -> str | None:
    """Return the service's identifier of a request; None if no header has one."""
    for name, value in headers.items():
        if _REQUEST_ID.search(name):
            return printable(hide(value, token))[:EXCERPT_LENGTH] or None
    return None


def printable(text: str) -> str:
    """Escape what would leave the line, change its direction or steer a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
