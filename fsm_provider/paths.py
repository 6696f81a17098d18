"""Where the PDF of a form goes: a path that no other version of it, and no other form, has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from string import Formatter
from typing import Any
from urllib.parse import quote

from fsm_provider.api.errors import FsmAddressError, FsmInputError
from fsm_provider.api.forms import job_id_of
from fsm_provider.api.models import Form

LONGEST = 100
"""Characters of a value; a name in most storages may have 255."""
UNKNOWN = "unknown"


class PathTemplate:
    """A relative path with fields in braces: ``{form_id}``, ``{form_name}``, ``{job_id}`` and the like.

    The version is the form's ``lastUpdatedOnDateTime`` in UTC: ``2026-01-31T080000.000000Z``. What a file
    name should not hold is written as ``%2F``; a value that is not there, as ``unknown``.

    :param text: the template; ``form_id`` and ``version`` have to be in it.
    :raises FsmInputError: naming ``path_template``.
    """

    def __init__(self, text: Any) -> None:
        self._text = read_relative_path("path_template", text)
        try:
            parts = list(Formatter().parse(self._text))
        except ValueError as error:
            raise FsmInputError(f"path_template: {error}") from None
        fields = {field for _, field, _, _ in parts if field is not None}
        if unknown := fields - _FIELDS.keys():
            fields_given = ", ".join(sorted(unknown)) or "an empty field"
            raise FsmInputError(f"path_template: {fields_given} is none of {', '.join(_FIELDS)}")
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise FsmInputError("path_template: a field should be its name in braces, without : or !")
        if missing := {"form_id", "version"} - fields:
            raise FsmInputError(
                f"path_template: has no {' and no '.join(f'{{{field}}}' for field in sorted(missing))}: "
                "one form would take the place of another, or of its older version"
            )

    def path_of(self, form: Form) -> str:
        """Fill the template.

        :raises FsmAddressError: for a form that does not say which version it is.
        """
        return self._text.format_map({name: value_of(form) for name, value_of in _FIELDS.items()})


def read_relative_path(name: str, text: Any) -> str:
    """Check a path below a folder.

    :raises FsmInputError: naming ``name``.
    """
    if not isinstance(text, str) or "\\" in text or {"", ".", ".."} & set(text.split("/")):
        raise FsmInputError(f"{name}: {text!r} should be a path below the destination, such as a/b.pdf")
    return text


def _name(value: Any) -> str:
    text = quote(str(UNKNOWN if value in (None, "") else value), safe="")[:LONGEST]
    return text if text.strip(".") else text.replace(".", "%2E")


def _version(form: Form) -> str:
    moment = form.last_updated_on_date_time
    if not isinstance(moment, datetime):
        raise FsmAddressError(f"form {form.id}: its record has no readable lastUpdatedOnDateTime")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H%M%S.%fZ")


_FIELDS: dict[str, Callable[[Form], str]] = {
    "property_id": lambda form: _name(form.property_id),
    "job_id": lambda form: _name(job_id_of(form)),
    "form_id": lambda form: _name(form.id),
    "form_name": lambda form: _name(form.form_name),
    "version": _version,
}
