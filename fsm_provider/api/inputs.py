"""Checks of single values that a caller gives, before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from fsm_provider.api.errors import FsmInputError

MAX_PDF_BYTES = 100 * 2**20
"""A larger file is refused where the caller says nothing else."""


def read_identifier(name: str, value: Any) -> int | str:
    """Check an identifier: an integer, or text that is not empty.

    :raises FsmInputError: naming ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FsmInputError(f"{name}: should be an integer or text, not {type(value).__name__}")
    text = str(value).strip()
    if not text:
        raise FsmInputError(f"{name}: is empty")
    if text == "None":
        raise FsmInputError(f"{name}: is the text 'None': the template that it comes from found nothing")
    return value if isinstance(value, int) else text


def read_time(name: str, value: Any) -> datetime:
    """Read an aware time; one without a zone is UTC, as everywhere in Airflow.

    :param value: a time, or ISO 8601 text.
    :raises FsmInputError: naming ``name``.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise FsmInputError(
                f"{name}: {value!r} is no ISO 8601 time such as 2026-01-31T08:00:00Z"
            ) from None
    if not isinstance(value, datetime):
        raise FsmInputError(f"{name}: should be a time, not {type(value).__name__}")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def read_count(name: str, value: Any, *, most: int | None = None) -> int:
    """Read an integer of at least 1, which may be given as text.

    :raises FsmInputError: naming ``name``.
    """
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise FsmInputError(f"{name}: {value!r} should be an integer of at least 1")
    if most is not None and int(text) > most:
        raise FsmInputError(f"{name}: {value!r} should be at most {most}")
    return int(text)


def read_flag(name: str, value: Any) -> bool:
    """Read true or false, which a template gives as text.

    :raises FsmInputError: naming ``name``.
    """
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise FsmInputError(f"{name}: {value!r} should be true or false")
    return flag


def read_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Check that ``value`` is one of ``choices``.

    :raises FsmInputError: naming ``name``.
    """
    if value not in choices:
        raise FsmInputError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def read_json(name: str, value: Any) -> Any:
    """Read a value that a template gives as JSON text.

    :raises FsmInputError: naming ``name``.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise FsmInputError(
            f"{name}: is text, but no JSON: end its template with | tojson, or give a task's output"
        ) from None


def read_counts_by_name(name: str, value: Any) -> dict[str, int]:
    """Read a mapping of names to integers of at least 1, which may be given as JSON text.

    :raises FsmInputError: naming ``name``.
    """
    given = read_json(name, value)
    if not isinstance(given, Mapping):
        raise FsmInputError(f"{name}: should be a mapping, not {type(given).__name__}")
    return {str(key): read_count(f"{name}.{key}", count) for key, count in given.items()}


def read_names(name: str, value: Any) -> tuple[str, ...]:
    """Read one name or several.

    :raises FsmInputError: naming ``name``.
    """
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) and one.strip() for one in names):
        raise FsmInputError(f"{name}: {value!r} should be names, none of them empty")
    return tuple(names)


def read_path(path: Any) -> str:
    """Check a path that is put behind the base URL.

    :raises FsmInputError: where it would lead elsewhere, or holds a query.
    """
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
        raise FsmInputError(f"path: {path!r} should begin with one /: it is put behind the host")
    if "?" in path or "#" in path:
        raise FsmInputError("path: should hold no ? and no #: query parameters are given apart")
    plain = unquote(path)
    if not plain.isprintable() or " " in path or "\\" in plain or {".", ".."} & set(plain.split("/")):
        raise FsmInputError(f"path: {path!r} should hold no blank, no backslash, no . and no ..")
    return path
