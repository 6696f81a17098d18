"""The manifest of stored PDFs: an atomic file of JSON lines, one for each form."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from fsm_provider.api.downloads import TAIL, has_end
from fsm_provider.api.errors import FsmInputError, FsmPdfError
from fsm_provider.storage.atomic_files import AtomicFiles, FileState, StoredFile
from fsm_provider.storage.lineage import uri_for
from fsm_provider.transfers.pdfs.outcomes import PdfOutcome

logger: logging.Logger = logging.getLogger(__name__)


class KnownFile(NamedTuple):
    """A file that a manifest names.

    :param etag: None if somebody else has replaced the file while it was stored.
    """

    file: StoredFile
    etag: str | None

    def is_still(self, state: FileState) -> bool:
        """Return whether the storage still has the file that was known to be complete."""
        return self.etag is not None and state == (self.file.size, self.etag)


def write_manifest(files: AtomicFiles, name: str, outcomes: Sequence[PdfOutcome], *, latest: str) -> None:
    """Write a line for each outcome, in order.

    :param latest: the name of a copy, for the next run.
    """
    for path in (name, latest):
        lines = (json.dumps(outcome).encode() + b"\n" for outcome in outcomes)  # ASCII: no odd line breaks
        files.store(path, lines, internal=path == latest)


class KnownPdfs:
    """The stored PDFs. A file is read only where no manifest describes what the storage has.

    :param manifest: the name of a manifest that an earlier attempt may have written: its files must not
        have changed.
    :param latest: the name of the copy that the previous run wrote.
    :raises FsmInputError: if the file ``manifest`` is not a manifest, and so must not be replaced.
    """

    def __init__(self, files: AtomicFiles, manifest: str, latest: str) -> None:
        self._files = files
        self._promised = _read(files, manifest)
        try:
            self._latest = _read(files, latest)
        except FsmInputError:
            logger.warning("%s cannot be parsed: PDFs that no other manifest names are read once", latest)
            self._latest = {}

    def find(self, name: str, form_id: int) -> KnownFile | None:
        """Return the stored file of that name; None where there is none, or it lacks its end.

        :raises FsmPdfError: if it is not the file that the manifest names.
        """
        state, path = self._files.state_for(name), uri_for(self._files.folder / name)
        if state is None:
            return None
        promised, latest = self._promised.get(path), self._latest.get(path)
        known = next((one for one in (promised, latest) if one and one.is_still(state)), None)
        ends = True
        if known is None:
            file, tail = self._files.measure(name, tail=TAIL)
            known, ends = self._as_known(file, state), has_end(tail)
        if promised and promised.file != known.file:
            raise FsmPdfError(
                f"form {form_id}: {path} is not the file that the earlier manifest names, and is left "
                "as it is: find out who changed it; to fetch it again, move it away"
            )
        if not ends:
            logger.warning("form %s: %s does not end as a PDF does; fetching it again", form_id, path)
        return known if ends else None

    def add(self, name: str, file: StoredFile) -> KnownFile:
        """Describe a file that has just been stored."""
        return self._as_known(file, self._files.state_for(name))

    def _as_known(self, file: StoredFile, state: FileState | None) -> KnownFile:
        """Add the storage's ETag, unless somebody else has replaced the file meanwhile."""
        return KnownFile(file, state.etag if state and state.size == file.size else None)


def _read(files: AtomicFiles, name: str) -> dict[str, KnownFile]:
    """Read the files that a manifest names, by path; none where there is no manifest."""
    path = files.folder / name
    if not path.fs.isfile(path.path):
        return {}
    known = {}
    try:
        for line in filter(None, path.fs.read_text(path.path).split("\n")):
            outcome = json.loads(line)
            if outcome["sha256"]:
                file = StoredFile(outcome["sha256"], outcome["bytes"])
                known[outcome["path"]] = KnownFile(file, outcome["etag"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise FsmInputError(f"manifest: {name} exists already, and is not a manifest of PDFs") from None
    return known
