"""The outcome of a PDF."""

from __future__ import annotations

from typing import Literal, TypedDict

PdfEnd = Literal["stored", "skipped", "failed", "not_tried"]


class PdfOutcome(TypedDict):
    """The outcome of one input.

    ``stored``: by this run; ``skipped``: stored before; ``failed``; ``not_tried``. ``lastUpdatedOnDateTime``
    is that of the stored version, which may be ``newer`` than the one asked for. ``etag`` is the storage's,
    for a file known to be complete: while it stays the same, the file is not read again.
    """

    index: int
    form: int
    lastUpdatedOnDateTime: str | None
    path: str | None
    sha256: str | None
    bytes: int | None
    etag: str | None
    outcome: PdfEnd
    newer: bool
    error: str | None
