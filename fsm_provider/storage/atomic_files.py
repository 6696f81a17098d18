"""Atomic files, complete or absent, in any storage that Airflow reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, cast
from uuid import uuid4

from fsm_provider.state.task import Task, digest_for
from fsm_provider.storage.lineage import report, uri_for

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

ATOMIC_PUT = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols of stores that show a file only once its upload is complete; renaming there means copying."""
AZURE = frozenset({"abfs", "abfss", "adl"})
"""Protocols where a rename is a copy that may still be pending, and what is open cannot be discarded."""
BLOCK_SIZE = 5 * 2**20
"""Bytes of a file buffered in memory during such an upload: the smallest part that S3 accepts."""


Target = tuple[BinaryIO, Callable[[], None], Callable[[], None]]
"""An open file, a function that gives it its name, and one that removes it."""


class AtomicFiles:
    """The files that one task writes under a folder.

    A file gets its name once it is complete. Until then it is in a folder of this task's own, which is
    removed at the end; the next attempt removes what a killed one left there.

    :param folder: where the files go.
    :param context: the task's; None outside a task: what a killed process left then stays.
    :param part: a name for these files, where a task has several ``AtomicFiles`` open in one folder.
    """

    def __init__(self, folder: ObjectStoragePath, context: Context | None, *, part: str = "") -> None:
        writer = astuple(Task.from_context(context)) if context else (str(uuid4()),)
        self.folder = folder
        self._partial = folder / f".partial-{digest_for([*writer, part], 12)}"
        self._renames = folder.protocol not in ATOMIC_PUT | AZURE

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

    def store(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a file from chunks, as :meth:`open` does; return its size in bytes."""
        with self.open(name) as file:
            for chunk in chunks:
                file.write(chunk)
            return file.tell()

    # Opened by its file system: a path would report the temporary name to lineage.
    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Write a file that appears, or replaces an older one, at the end of a block that raises nothing.

        :param name: its path in the folder.
        """
        path = self.folder / name
        file, commit, discard = self._target(path)
        try:
            with file:
                yield file
            commit()
        except BaseException:
            discard()
            raise
        report(path, outputs=[uri_for(path)])

    def _target(self, path: ObjectStoragePath) -> Target:
        if self._renames:
            return self._partial_file(path)
        return self._upload(path) if path.protocol in ATOMIC_PUT else self._local_file(path)

    @staticmethod
    def _upload(path: ObjectStoragePath) -> Target:
        file = path.fs.open(path.path, "wb", autocommit=False, block_size=BLOCK_SIZE)
        return file, file.commit, file.discard

    @staticmethod
    def _local_file(path: ObjectStoragePath) -> Target:
        file = NamedTemporaryFile(prefix="fsm-", delete=False)  # noqa: SIM115 - closed by open()
        local = Path(file.name)

        def commit() -> None:
            path.fs.put_file(str(local), path.path)
            local.unlink()

        return cast("BinaryIO", file), commit, partial(local.unlink, missing_ok=True)

    def _partial_file(self, path: ObjectStoragePath) -> Target:
        partial_name = uuid4().hex  # not that of another attempt, which may still write
        for folder in (self._partial, path.parent):
            folder.mkdir(parents=True, exist_ok=True)

        def commit() -> None:
            if path.is_dir():  # some versions would move the file into it
                raise IsADirectoryError(f"{path} is a folder")
            (self._partial / partial_name).rename(path)

        def discard() -> None:
            (self._partial / partial_name).unlink(missing_ok=True)

        return self.folder.fs.open((self._partial / partial_name).path, "wb"), commit, discard

    def _clear(self) -> None:
        if self._renames and self._partial.exists():
            self._partial.rmdir(recursive=True)
