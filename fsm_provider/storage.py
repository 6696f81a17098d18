"""Atomic files, complete or absent, in any storage that Airflow reaches, and their lineage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from urllib.parse import SplitResult, quote, urlsplit
from uuid import NAMESPACE_URL, uuid4, uuid5

from fsm_provider.api.errors import FsmStorageError
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "adl"})
"""Protocols of stores that show a file only once its upload is complete.

Renaming there means copying.
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
        self.folder = folder
        writer = uuid4()
        if context:  # for all attempts of a task the same
            task = Task.from_context(context)
            writer = uuid5(NAMESPACE_URL, json.dumps([*astuple(task), part]))
        self._partial = folder / f".partial-{writer.hex}"
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
        """Open a file to write: once the block has ended, it is there, and replaces an older one.

        If the block raises, there is no new file, and an older one stays.

        :param name: its path in the folder.
        """
        path = self.folder / name
        write = _upload if self._is_uploaded else self._write_and_rename
        with write(path) as file:
            yield file
        _lineage_collector().add_output_asset(context=path, uri=uri_for(path))

    @contextmanager
    def _write_and_rename(self, path: ObjectStoragePath) -> Iterator[BinaryIO]:
        self._make_folder(self._partial)
        self._make_folder(path.parent)
        # A name of its own, as another attempt may still write.
        partial = self._partial / uuid4().hex
        # Opened by its file system: a path would report the temporary name to lineage.
        with self.folder.fs.open(partial.path, "wb") as file:
            yield file
        if path.is_dir():  # some versions would move the file into it
            raise IsADirectoryError(f"{path} is a folder")
        partial.rename(path)

    def _make_folder(self, folder: ObjectStoragePath) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FsmStorageError(f"destination: {self.folder} cannot be made: {error}") from None

    def _clear(self) -> None:
        if not self._is_uploaded and self._partial.exists():
            self._partial.rmdir(recursive=True)


@contextmanager
def _upload(path: ObjectStoragePath) -> Iterator[BinaryIO]:
    with TemporaryFile() as file:  # without a name: a killed process leaves nothing behind
        yield cast("BinaryIO", file)
        file.flush()
        path.fs.put_file(
            f"/dev/fd/{file.fileno()}",
            path.path,
            chunksize=UPLOAD_BYTES,
            max_concurrency=2,  # S3's own would hold ten parts in memory
        )


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


def convert_asset_to_openlineage(asset: Any, _: Any) -> Any:
    """Return OpenLineage's dataset of a URI ``fsm://``; its namespace is the connection.

    So it is the same dataset where only the URI is known, as of inlets.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"fsm://{uri.netloc}", name=uri.path.strip("/"))


def uri_for(path: ObjectStoragePath) -> str:
    """Return the URI of a file, without its connection."""
    return f"{path.protocol or 'file'}://{path.path}"


def report_read(hook: Any, records: str) -> None:
    """Report to Airflow's lineage collector that ``forms`` or other records were read.

    :param hook: of their connection.
    """
    uri = uri_for_records(hook.fsm_conn_id, records)
    _lineage_collector().add_input_asset(context=hook, uri=uri)


def _lineage_collector() -> Any:
    """Return what collects lineage; it does nothing unless a plugin reads it, as OpenLineage's."""
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    return get_hook_lineage_collector()
