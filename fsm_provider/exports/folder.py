"""The folder of an export: its files, and the manifest that says that they are all there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from fsm_provider.api.errors import FsmInputError
from fsm_provider.exports.formats import Format
from fsm_provider.exports.schema import Schema
from fsm_provider.exports.spool import Piece, Spool

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from fsm_provider.storing import WholeFiles

MANIFEST = "_manifest.json"
"""There while all files that it names are; what begins with ``_`` is no data to readers of such folders."""
WRITING = "_writing.json"
"""There while an export is under way, or was killed: it names every file that any try may have left."""
CHUNK_BYTES = 4 * 2**20
"""How much is written at once; of Parquet, about as much JSON is a row group."""

_OURS = re.compile(r"([a-z]+=[^/]+/)?(forms|asset_dynamic_fields)\.(jsonl|csv|parquet)")


class Totals(NamedTuple):
    """What an export comes to."""

    files: int
    rows: int
    bytes: int


class Layout(NamedTuple):
    """How an export is written.

    :param file_name: that of each of its files.
    :param partitioned: whether they are in folders; otherwise there is one file, even if it has no row.
    """

    file_name: str
    partitioned: bool
    format: Format
    schema: Schema


class ExportFolder:
    """A folder that one export writes into, as often as it is run.

    A run replaces what an earlier one of the same listing has written, and removes what it does not write
    again. While that is under way, and after it was interrupted, there is no manifest.

    :param files: how files get there.
    :param listing: what is exported: the same JSON values in each run of the same export.
    :raises FsmInputError: where the folder holds another listing.
    """

    def __init__(self, files: WholeFiles, listing: dict[str, Any]) -> None:
        self._files = files
        self._folder = files.folder
        self._listing = json.loads(json.dumps(listing, default=str))
        self._earlier = {path for name in (MANIFEST, WRITING) for path in self._named_in(name)}
        self.manifest: ObjectStoragePath = self._folder / MANIFEST

    def write(self, spool: Spool, layout: Layout) -> Totals:
        """Write the files of the spool, and the manifest when they are there."""
        self._put(WRITING, (to_json({"path": path}) for path in chain(self._earlier, _paths(spool, layout))))
        self.manifest.unlink(missing_ok=True)
        entries = spool.by_folder() if layout.partitioned else [("", spool.in_order())]
        written: list[bytes] = []  # as text, since there may be a hundred thousand
        rows = size = 0
        for folder, pieces in entries:
            path, chunks = folder + layout.file_name, _Chunks(pieces)
            with self._files.create(path) as file:
                layout.format.write(file, layout.schema, chunks)
            stored = file.stored
            written.append(
                to_json({"path": path, "rows": chunks.rows, "bytes": stored.size, "sha256": stored.sha256})
            )
            rows += chunks.rows
            size += stored.size
        for path in self._earlier.difference(_paths(spool, layout)):
            (self._folder / path).unlink(missing_ok=True)
        columns = {column.name: column.kind for column in layout.schema.columns}
        self._put(MANIFEST, written, columns=columns, rows=rows, bytes=size)
        (self._folder / WRITING).unlink()
        return Totals(len(written), rows, size)

    def _put(self, name: str, files: Iterable[bytes], **content: Any) -> None:
        self._files.store(name, _object_with_files({"listing": self._listing, **content}, files))

    def _named_in(self, name: str) -> list[str]:
        path = self._folder / name
        if not path.exists():
            return []
        try:
            content = json.loads(path.read_bytes())
            paths = [file["path"] for file in content["files"]]
            is_ours = content["listing"] == self._listing and all(map(_OURS.fullmatch, paths))
        except (ValueError, LookupError, TypeError):
            is_ours = False
        if not is_ours:
            raise FsmInputError(
                f"destination: {self._folder} holds another export, as its {name} says: give each listing "
                "and each window a folder of its own, such as .../{{ ds }}, or delete what is there"
            )
        return paths


def _paths(spool: Spool, layout: Layout) -> Iterator[str]:
    folders = spool.folders() if layout.partitioned else iter([""])
    return (folder + layout.file_name for folder in folders)


def _object_with_files(content: dict[str, Any], files: Iterable[bytes]) -> Iterator[bytes]:
    """Make JSON with a line for each file."""
    yield to_json(content)[:-1] + b',"files":['
    separator = b"\n"
    for file in files:
        yield separator + file
        separator = b",\n"
    yield b"\n]}\n"


class _Chunks:
    """Entries in larger pieces; counts their rows on the way."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces
        self.rows = 0

    def __iter__(self) -> Iterator[bytes]:
        chunk, size = [], 0
        for _, rows, content in self._pieces:
            chunk.append(content)
            size += len(content)
            self.rows += rows
            if size >= CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
        if chunk:
            yield b"".join(chunk)
