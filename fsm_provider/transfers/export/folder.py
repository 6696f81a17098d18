"""The folder of an export: its files, and the manifest that lists them once all are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.providers.common.compat.sdk import AirflowException
from pydantic_core import to_json

from fsm_provider.api.errors import FsmInputError
from fsm_provider.transfers.export.formats import Format
from fsm_provider.transfers.export.schema import Schema
from fsm_provider.transfers.export.sort_buffer import SortBuffer, StoredEntry

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from fsm_provider.storage.atomic_files import AtomicFiles, StagedFile

MANIFEST = "_manifest.json"
"""Exists while all files that it names do; readers of data folders ignore names that begin with ``_``."""
WRITING = "_writing.json"
"""Exists while an export is under way, or was killed: it names every file that any attempt may have left."""
CHUNK_BYTES = 4 * 2**20
"""Bytes written at once; a Parquet row group is about as much JSON."""

_OURS = re.compile(r"([a-z]+=[^/]+/)?(forms|asset_dynamic_fields)\.(jsonl|csv|parquet)")


class Totals(NamedTuple):
    """Totals of an export."""

    files: int
    rows: int
    bytes: int


class Layout(NamedTuple):
    """How an export is written.

    :param file_name: the name of each file.
    :param partitioned: whether they are in folders; otherwise there is one file, even without rows.
    """

    file_name: str
    partitioned: bool
    format: Format
    schema: Schema


class ExportFolder:
    """The folder of one export, for all its runs.

    A run writes its files under temporary names, then replaces those of an earlier run of the same listing
    and removes the ones it did not write again. While files are being replaced, and if that is interrupted,
    there is no manifest.

    :param files: writes the files.
    :param listing: what is exported: the same JSON values in each run of the same export.
    :raises FsmInputError: where the folder holds another listing.
    """

    def __init__(self, files: AtomicFiles, listing: dict[str, Any]) -> None:
        self._files = files
        self._folder = files.folder
        self._listing = json.loads(json.dumps(listing, default=str))
        self._earlier_paths()
        self.manifest: ObjectStoragePath = self._folder / MANIFEST

    def write(self, buffer: SortBuffer, layout: Layout) -> Totals:
        """Write the buffer's files and the manifest; then give them their names, the manifest last.

        An error while they are written, as on a full disk, leaves the folder as it was.

        :raises AirflowException: if another run has written the folder at the same time.
        """
        staged: list[StagedFile] = []
        totals = self._stage(buffer, layout, staged)
        *data, manifest = staged
        earlier = self._earlier_paths()  # once more: another run may have ended since this one began
        left = (to_json({"path": path}) for path in chain(earlier, _paths(buffer, layout)))
        self._staged(WRITING, left).commit()
        self.manifest.unlink(missing_ok=True)
        for file in data:
            file.commit()
        for path in earlier.difference(_paths(buffer, layout)):
            (self._folder / path).unlink(missing_ok=True)
        manifest.commit()
        try:
            (self._folder / WRITING).unlink()
        except FileNotFoundError:
            raise AirflowException(
                f"another run has written {self._folder} at the same time, so its files may be of either. "
                "Run this again, and prevent it with max_active_runs=1 or a folder for each run"
            ) from None
        return totals

    def _stage(self, buffer: SortBuffer, layout: Layout, staged: list[StagedFile]) -> Totals:
        folders = buffer.by_folder() if layout.partitioned else [("", buffer.in_order())]
        written: list[bytes] = []  # as JSON text: there may be a hundred thousand
        rows = size = 0
        for folder, entries in folders:
            path, chunks = folder + layout.file_name, _Chunks(entries)
            with self._files.stage(path) as file:
                layout.format.write(file, layout.schema, chunks)
            staged.append(file)
            stored = file.stored
            written.append(
                to_json({"path": path, "rows": chunks.rows, "bytes": stored.size, "sha256": stored.sha256})
            )
            rows += chunks.rows
            size += stored.size
        columns = {column.name: column.kind for column in layout.schema.columns}
        staged.append(self._staged(MANIFEST, written, columns=columns, rows=rows, bytes=size))
        return Totals(len(written), rows, size)

    def _staged(self, name: str, files: Iterable[bytes], **content: Any) -> StagedFile:
        with self._files.stage(name, internal=name == WRITING) as file:
            for chunk in _object_with_files({"listing": self._listing, **content}, files):
                file.write(chunk)
        return file

    def _earlier_paths(self) -> set[str]:
        """Return the paths of the files that other runs wrote, or may have written."""
        return {path for name in (MANIFEST, WRITING) for path in self._named_in(name)}

    def _named_in(self, name: str) -> list[str]:
        path = self._folder / name
        path.fs.invalidate_cache(path.path)  # other runs write there too
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            content = json.loads(text)
            listing = content["listing"]
            differences = _differences(listing, self._listing)
            paths = [file["path"] for file in content["files"]]
            is_ours = not differences and all(map(_OURS.fullmatch, paths))
        except (ValueError, LookupError, TypeError, AttributeError):
            differences, is_ours = [], False
        if not is_ours:
            raise FsmInputError(
                f"destination: {self._folder} holds another export, as its {name} says"
                f"{''.join(f' ({one})' for one in differences)}: give each account, listing and window a "
                "folder of its own, such as .../{{ ds }}. If only the connection's name or host changed, "
                "delete what is there"
            )
        return paths


def _differences(found: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Describe how two listings differ."""
    return [
        f"{name}: {found.get(name)!r}, not {ours.get(name)!r}"
        for name in dict.fromkeys((*ours, *found))
        if found.get(name) != ours.get(name)
    ]


def _paths(buffer: SortBuffer, layout: Layout) -> Iterator[str]:
    folders = buffer.folders() if layout.partitioned else iter([""])
    return (folder + layout.file_name for folder in folders)


def _object_with_files(content: dict[str, Any], files: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON object with a line for each file."""
    yield to_json(content)[:-1] + b',"files":['
    separator = b"\n"
    for file in files:
        yield separator + file
        separator = b",\n"
    yield b"\n]}\n"


class _Chunks:
    """Joins entries into chunks, and counts their rows."""

    def __init__(self, entries: Iterable[StoredEntry]) -> None:
        self._entries = entries
        self.rows = 0

    def __iter__(self) -> Iterator[bytes]:
        chunk, size = [], 0
        for _, rows, content in self._entries:
            chunk.append(content)
            size += len(content)
            self.rows += rows
            if size >= CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
        if chunk:
            yield b"".join(chunk)
