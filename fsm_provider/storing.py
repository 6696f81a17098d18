"""Files that are there whole or not at all, in any storage that Airflow reaches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self
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
            return _measured(pieces, file)

    def measure(self, name: str) -> StoredFile | None:
        """Read a file that is there, None where there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        with path.fs.open(path.path, "rb") as file:
            return _measured(iter(lambda: file.read(BLOCK_SIZE), b""))

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Write a file; it is there, in the place of an older one, once the block has ended well.

        :param name: its path in the folder.
        """
        path = self.folder / name
        with self._put(path) if self._puts_whole else self._rename(self._partial / name, path) as file:
            yield file
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
    def _rename(self, partial: ObjectStoragePath, path: ObjectStoragePath) -> Iterator[BinaryIO]:
        for folder in (partial.parent, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with partial.fs.open(partial.path, "wb") as file:
            yield file
        partial.rename(path)

    def _clear(self) -> None:
        if not self._puts_whole and self._partial.exists():
            self._partial.rmdir(recursive=True)


def _measured(pieces: Iterable[bytes], copy: BinaryIO | None = None) -> StoredFile:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        if copy:
            copy.write(piece)
    return StoredFile(digest.hexdigest(), size)
