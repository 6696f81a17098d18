"""Paths of PDFs: each version of each form has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fsm_provider.api.errors import FsmInputError, FsmPdfUrlError
from fsm_provider.api.forms import job_id_from
from fsm_provider.state.task import digest_for

if TYPE_CHECKING:
    from fsm_provider.api.models import Form

MAX_NAME_BYTES = 255
"""The limit of most storages for the name of a file or folder."""
MAX_VALUE_LENGTH = 100
"""Characters of one value; a name may hold several."""
MAX_SUFFIX = 8
"""Characters of a suffix, such as ``pdf``, that is kept when a name is shortened."""
UNKNOWN = "unknown"


class PathTemplate:
    """A relative path with fields in braces: ``{form_id}``, ``{form_name}``, ``{job_id}`` and the like.

    The version is the form's ``lastUpdatedOnDateTime`` in UTC: ``2026-01-31T080000.000000Z``. Characters
    that are unsafe in file names are percent-encoded; a missing value is ``unknown``.

    :param text: the template; it must contain ``form_id`` and ``version``.
    :raises FsmInputError: naming ``path_template``.
    """

    def __init__(self, text: Any) -> None:
        self._text = parse_relative_path("path_template", text)
        try:
            parts = list(Formatter().parse(self._text))
        except ValueError as error:
            raise FsmInputError(f"path_template: {error}") from None
        fields = {field for _, field, _, _ in parts if field is not None}
        if unknown := fields - _FIELDS.keys():
            fields_given = ", ".join(sorted(unknown)) or "an empty field"
            raise FsmInputError(f"path_template: {fields_given} is none of {', '.join(_FIELDS)}")
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise FsmInputError("path_template: a field should be a name in braces, without : or !")
        if missing := {"form_id", "version"} - fields:
            raise FsmInputError(
                f"path_template: has no {' and no '.join(f'{{{field}}}' for field in sorted(missing))}: "
                "one form would replace another, or its own older version"
            )
        for name in self._text.split("/"):
            _refuse_ambiguous(name)

    def path_for(self, form: Form) -> str:
        """Fill the template.

        :raises FsmPdfUrlError: for a form without a readable version.
        """
        filled = self._text.format_map({name: get_value(form) for name, get_value in _FIELDS.items()})
        return "/".join(map(_bounded, filled.split("/")))


def _refuse_ambiguous(name: str) -> None:
    """Check that names are unambiguous: form 2 called ``A1`` must differ from form 12 called ``A``.

    :raises FsmInputError: naming ``path_template``.
    """
    before, field, after = name.partition("{form_id}")
    if not field:
        return
    service_fields = ("{property_id}", "{form_name}", "{job_id}")
    between_two = all(any(one in side for one in service_fields) for side in (before, after))
    if (
        between_two
        or before.endswith("}")
        or after.startswith("{")
        or before[-1:].isdigit()
        or after[:1].isdigit()
    ):
        raise FsmInputError(
            "path_template: {form_id} should be separated from other fields by a character that is not a "
            "digit, with fields other than {version} on one side only, or be in a folder of its own"
        )


def parse_relative_path(name: str, text: Any) -> str:
    """Check a path below a folder.

    :raises FsmInputError: naming ``name``.
    """
    if not isinstance(text, str) or "\\" in text or {"", ".", ".."} & set(text.split("/")):
        raise FsmInputError(f"{name}: {text!r} should be a path below the destination, such as a/b.pdf")
    return text


def utc_time(value: Any) -> datetime | None:
    """Return a time in UTC; None if it is no time, or beyond the calendar there."""
    try:
        return value.astimezone(UTC) if isinstance(value, datetime) else None
    except OverflowError:
        return None


def _name(value: Any) -> str:
    text = str(UNKNOWN if value in (None, "") else value)
    text = _shortened(quote(text, safe="", errors="backslashreplace"), MAX_VALUE_LENGTH)
    return text if text.strip(".") else text.replace(".", "%2E")


def _shortened(quoted: str, max_bytes: int) -> str:
    """Return the name if it fits into ``max_bytes``, else its beginning and a digest of all of it.

    :param quoted: percent-encoded, hence without ``!``: a shortened name never equals another name.
    """
    encoded = quoted.encode()
    if len(encoded) <= max_bytes:
        return quoted
    end = f"!{digest_for(quoted, 24)}"
    return re.sub("%.?$", "", encoded[: max_bytes - len(end)].decode(errors="ignore")) + end


def _bounded(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    if len(suffix) > MAX_SUFFIX:
        stem, dot, suffix = name, "", ""
    return _shortened(stem, MAX_NAME_BYTES - len(dot + suffix)) + dot + suffix


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
