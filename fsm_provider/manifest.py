"""What became of each form whose PDF was to be brought: a file of JSON lines, complete or absent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal, TypedDict

from fsm_provider.api.errors import FsmInputError
from fsm_provider.storing import WholeFiles

PdfEnd = Literal["stored", "skipped", "failed", "not_tried"]


class PdfOutcome(TypedDict):
    """What became of one input.

    ``stored``: the file is there now; ``skipped``: it was there before; ``failed``; ``not_tried``.
    ``lastUpdatedOnDateTime`` is of the version that the file is, which may be ``newer`` than asked for.
    """

    index: int
    form: int
    lastUpdatedOnDateTime: str | None
    path: str | None
    sha256: str | None
    bytes: int | None
    outcome: PdfEnd
    newer: bool
    error: str | None


def write_manifest(files: WholeFiles, name: str, outcomes: Iterable[PdfOutcome]) -> None:
    """Write a line for each outcome, in their order."""
    lines = (json.dumps(outcome, ensure_ascii=False) + "\n" for outcome in outcomes)
    files.store(name, (line.encode() for line in lines))


def digests_by_path(files: WholeFiles, name: str) -> dict[str, str]:
    """Give the sha256 of each file that a manifest names; nothing where there is no manifest.

    :raises FsmInputError: where what is there is none, and so not to be replaced.
    """
    path = files.folder / name
    if not path.is_file():
        return {}
    digests = {}
    try:
        for line in path.read_text().splitlines():
            outcome = json.loads(line)
            if outcome["sha256"]:
                digests[outcome["path"]] = outcome["sha256"]
    except (ValueError, LookupError, TypeError):
        raise FsmInputError(f"manifest: {name} is there already, and is no manifest of PDFs") from None
    return digests
