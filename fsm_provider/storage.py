"""Atomic files, complete or absent, in any storage that Airflow reaches, and what lineage learns of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from urllib.parse import SplitResult, quote
from uuid import uuid4

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmStorageError
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "adl"})
"""Protocols of stores that show a file only once its upload is complete; renaming there means
copying.
"""
UPLOAD_BYTES = 5 * 2**20
"""Bytes in one part of an upload: the smallest part that S3 accepts."""


class AtomicFiles:
    """The files that one task writes under a folder.

    A file gets its name once it is complete. Until then it is in a folder of this task's own, which
    is removed at the end; the next attempt removes what a killed one left there. In front of an
    object store, it is in the worker's temporary folder, and uploaded then.

    :param folder: where the files go.
    :param context: the task's; None outside a task: what a killed process left then stays.
    :param part: a name for these files, where a task has several ``AtomicFiles`` open in one
        folder.
    """

    def __init__(
        self, folder: ObjectStoragePath, context: Context | None, *, part: str = ""
    ) -> None:
        writer = astuple(Task.from_context(context)) if context else (str(uuid4()),)
        self.folder = folder
        self._partial = folder / f".partial-{digest_for([*writer, part], 12)}"
        self._is_uploaded = folder.protocol in OBJECT_STORES

    def __enter__(self) -> Self:
        self._clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def store(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a file from chunks, as :meth:`open` does; return its size in bytes."""
        with self.open(name) as file:
            for chunk in chunks:
                file.write(chunk)
            return file.tell()

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Write a file that appears, or replaces an older one, at the end of a block that raises
        nothing.

        :param name: its path in the folder.
        """
        path = self.folder / name
        if self._is_uploaded:
            # It has no name, so a killed process leaves nothing behind.
            with TemporaryFile() as file:
                yield cast("BinaryIO", file)
                file.flush()
                # S3's would hold ten parts in memory.
                source = f"/dev/fd/{file.fileno()}"
                path.fs.put_file(source, path.path, chunksize=UPLOAD_BYTES, max_concurrency=2)
        else:
            for folder in (self._partial, path.parent):
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise FsmStorageError(
                        f"destination: {self.folder} cannot be made: {error}"
                    ) from None
            partial = (
                self._partial / uuid4().hex
            )  # not that of another attempt, which may still write
            # Opened by its file system: a path would report the temporary name to lineage.
            with self.folder.fs.open(partial.path, "wb") as written:
                yield written
            if path.is_dir():  # some versions would move the file into it
                raise IsADirectoryError(f"{path} is a folder")
            partial.rename(path)
        report(path, outputs=[uri_for(path)])

    def _clear(self) -> None:
        if not self._is_uploaded and self._partial.exists():
            self._partial.rmdir(recursive=True)


def uri_for_records(fsm_conn_id: str, records: str) -> str:
    """Return the URI of a connection's ``forms`` or other records, a prefix of its assets' URIs."""
    return f"fsm://{quote(fsm_conn_id, safe='')}/{records}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return a URI of the scheme ``fsm``, as Airflow wants it; a ValueError if it lacks a part."""
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(
            f"{uri.geturl()}: should be fsm://<connection>/<what>, e.g. fsm://fsm_default/forms"
        )
    return uri


def uri_for(path: ObjectStoragePath) -> str:
    """Return the URI of a file, without its connection."""
    return f"{path.protocol or 'file'}://{path.path}"


def report(by: Any, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
    """Report to Airflow's lineage collector, which does nothing unless a plugin reads it, as
    OpenLineage's.

    :param by: the hook or path that was used.
    """
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    collector = get_hook_lineage_collector()
    for uri in inputs:
        collector.add_input_asset(context=by, uri=uri)
    for uri in outputs:
        collector.add_output_asset(context=by, uri=uri)
