"""Files that are there whole or not at all, in any storage that Airflow reaches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self
from uuid import uuid4

from fsm_provider.digest import digest_of
from fsm_provider.lineage import report, uri_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

PUTS_WHOLE = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols of stores that show a file only once all of it is there; renaming there is copying."""
BLOCK_SIZE = 5 * 2**20
"""Bytes of a file kept in memory on its way to such a store: the smallest part that S3 takes."""


class StoredFile(NamedTuple):
    """A file that is there.

    :param sha256: in hexadecimal digits.
    :param size: in bytes.
    """

    sha256: str
    size: int


class DigestedFile(RawIOBase):
    """A file to write to, which knows what it was given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes."""
        self._file.write(content)
        self._sha256.update(content)
        self._size += len(content)
        return len(content)

    @property
    def stored(self) -> StoredFile:
        """What was written so far."""
        return StoredFile(self._sha256.hexdigest(), self._size)


class WholeFiles:
    """The files that one task writes under a folder.

    Each has its name once it is whole. Before that it is in a folder of this task's own, which is
    removed at the end; what a killed try has left there, when the next try begins.

    :param folder: where the files go.
    :param context: the task's; None where there is none: what a killed process has left then stays.
    :param part: what of its files, where a task has several of these at once in one folder.
    """

    def __init__(self, folder: ObjectStoragePath, context: Context | None, *, part: str = "") -> None:
        if context:
            task = context["ti"]
            writer = [task.dag_id, task.run_id, task.task_id, task.map_index]
        else:
            writer = [str(uuid4())]
        self.folder = folder
        self._partial = folder / f".partial-{digest_of([*writer, part], 12)}"
        self._puts_whole = folder.protocol in PUTS_WHOLE

    def __enter__(self) -> Self:
        self._clear()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clear()

    def store(self, name: str, pieces: Iterable[bytes]) -> StoredFile:
        """Write a file of what comes piece by piece; see :meth:`create`."""
        with self.create(name) as file:
            for piece in pieces:
                file.write(piece)
        return file.stored

    def measure(self, name: str) -> StoredFile | None:
        """Read a file that is there, None where there is none."""
        path = self.folder / name
        if not path.fs.isfile(path.path):
            return None
        with path.fs.open(path.path, "rb") as file:
            return StoredFile(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())

    @contextmanager
    def create(self, name: str) -> Iterator[DigestedFile]:
        """Write a file; it is there, in the place of an older one, once the block has ended well.

        :param name: its path in the folder.
        """
        path = self.folder / name
        with self._put(path) if self._puts_whole else self._rename(path) as file:
            yield DigestedFile(file)
        report(path, outputs=[uri_of(path)])

    # Opened by its file system, as a path reports to lineage what it opens: here, a name that goes.
    @contextmanager
    def _put(self, path: ObjectStoragePath) -> Iterator[BinaryIO]:
        file = path.fs.open(path.path, "wb", autocommit=False, block_size=BLOCK_SIZE)
        try:
            try:
                yield file
            finally:
                file.close()
        except BaseException:
            file.discard()
            raise
        file.commit()

    @contextmanager
    def _rename(self, path: ObjectStoragePath) -> Iterator[BinaryIO]:
        partial = self._partial / digest_of(str(path), 24)  # no folders to make and to remove again
        for folder in (partial.parent, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with partial.fs.open(partial.path, "wb") as file:
            yield file
        partial.rename(path)

    def _clear(self) -> None:
        if not self._puts_whole and self._partial.exists():
            self._partial.rmdir(recursive=True)
