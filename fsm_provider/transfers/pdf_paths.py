"""Paths of PDFs: each version of each form has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fsm_provider.api.errors import FsmInputError, FsmPdfUrlError
from fsm_provider.api.forms import job_id_from
from fsm_provider.state.task import digest_for

if TYPE_CHECKING:
    from fsm_provider.api.models import Form

FIELD = re.compile(r"\{(.*?)\}")
MAX_VALUE_LENGTH = 100
"""Characters of one value; most storages allow 255 bytes for the name of a file or folder."""


class PathTemplate:
    """A relative path with fields in braces: ``{form_id}``, ``{form_name}``, ``{job_id}`` and the like.

    The version is the form's ``lastUpdatedOnDateTime`` in UTC: ``2026-01-31T080000.000000Z``. Characters
    that are unsafe in file names are percent-encoded; a missing value is ``unknown``.

    :param text: the template; it must contain ``form_id`` and ``version``.
    :raises FsmInputError: naming ``path_template``.
    """

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str) or "\\" in text or {"", ".", ".."} & set(text.split("/")):
            raise FsmInputError(
                f"path_template: {text!r} should be a path below the destination, such as a/b.pdf"
            )
        fields = set(FIELD.findall(text))
        if unknown := fields - _FIELDS.keys():
            fields_given = ", ".join(sorted(unknown)) or "an empty field"
            raise FsmInputError(f"path_template: {fields_given} is none of {', '.join(_FIELDS)}")
        if missing := {"form_id", "version"} - fields:
            raise FsmInputError(
                f"path_template: has no {' and no '.join(f'{{{field}}}' for field in sorted(missing))}: "
                "one form would replace another, or its own older version"
            )
        if re.search(r"[}0-9]\{form_id\}|\{form_id\}[{0-9]", text):
            raise FsmInputError("path_template: {form_id} should be separated from other fields and digits")
        self._text = text

    def path_for(self, form: Form) -> str:
        """Fill the template.

        :raises FsmPdfUrlError: for a form without a readable version.
        """
        return FIELD.sub(lambda field: _FIELDS[field[1]](form), self._text)


def utc_time(value: Any) -> datetime | None:
    """Return a time in UTC; None if it is no time, or beyond the calendar there."""
    try:
        return value.astimezone(UTC) if isinstance(value, datetime) else None
    except OverflowError:
        return None


def _name(value: Any) -> str:
    """Return a value as a part of a name: percent-encoded, hence without ``!`` unless it is shortened."""
    quoted = quote("unknown" if value in (None, "") else str(value), safe="", errors="backslashreplace")
    if len(quoted) > MAX_VALUE_LENGTH:
        end = f"!{digest_for(quoted, 24)}"
        return re.sub("%.?$", "", quoted[: MAX_VALUE_LENGTH - len(end)]) + end
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def _version(form: Form) -> str:
    if (updated := utc_time(form.last_updated_on_date_time)) is None:
        raise FsmPdfUrlError(f"form {form.id}: its record has no readable lastUpdatedOnDateTime")
    return updated.strftime("%Y-%m-%dT%H%M%S.%fZ")


_FIELDS: dict[str, Callable[[Form], str]] = {
    "property_id": lambda form: _name(form.property_id),
    "job_id": lambda form: _name(job_id_from(form)),
    "form_id": lambda form: _name(form.id),
    "form_name": lambda form: _name(form.form_name),
    "version": _version,
}
