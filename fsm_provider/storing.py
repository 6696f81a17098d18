"""Files that are there whole or not at all, in any storage that Airflow reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from fsm_provider.digest import digest_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

PUTS_WHOLE = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols of stores that show a file only once all of it is there; renaming there is copying."""
BLOCK_SIZE = 5 * 2**20
"""Bytes of a file kept in memory on its way to such a store: the smallest part that S3 takes."""


class WholeFiles:
    """The files that one task writes under a folder.

    Each has its name once it is whole. Before that it is in a folder of this task's own, which is
    removed at the end; what a killed try has left there, when the next try begins.

    :param folder: where the files go.
    :param context: the task's.
    """

    def __init__(self, folder: ObjectStoragePath, context: Context) -> None:
        task = context["ti"]
        writer = [task.dag_id, task.run_id, task.task_id, task.map_index]
        self.folder = folder
        self._partial = folder / f".partial-{digest_of(writer, 12)}"
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

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Write a file; it is there, in the place of an older one, once the block has ended well.

        :param name: its path in the folder.
        """
        put = self._put if self._puts_whole else self._rename
        with put(name) as file:
            yield file

    @contextmanager
    def _put(self, name: str) -> Iterator[BinaryIO]:
        file: Any = (self.folder / name).open("wb", autocommit=False, block_size=BLOCK_SIZE)
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
    def _rename(self, name: str) -> Iterator[BinaryIO]:
        partial, path = self._partial / name, self.folder / name
        for folder in (partial.parent, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
        partial.rename(path)

    def _clear(self) -> None:
        if not self._puts_whole and self._partial.exists():
            self._partial.rmdir(recursive=True)
