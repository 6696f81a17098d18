"""The formats of what is stored: another version of this package may have to read it.

A stored dictionary has a ``format``, a number; one without it is of the first. Within a
format, fields may be added, which older versions ignore, and left out, which then have a default. A
change that an older version would misread makes a new format, which that version refuses.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fsm_provider.api.errors import FsmInputError

FIRST = 1


def format_of(stored: Mapping[str, Any]) -> int:
    number = stored.get("format")
    return number if isinstance(number, int) else FIRST


def refuse_newer(stored: Mapping[str, Any], newest: int, message: str) -> None:
    """Refuse what a newer version has written.

    :param newest: the newest format that this version reads.
    :param message: what to do; ``{}`` is the format that was found.
    """
    if format_of(stored) > newest:
        raise FsmInputError(message.format(format_of(stored)))


def known_fields(dataclass: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the stored fields that this version knows."""
    names = {field.name for field in fields(dataclass)}
    return {name: value for name, value in stored.items() if name in names}
