"""Base classes of the operators that write files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from fsm_provider.api.validation import parse_choice, parse_text
from fsm_provider.operators.base import FsmOptionsOperator, OptionParsers

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from fsm_provider.api.listing import Listing
    from fsm_provider.transfers.export.schema import Row, Schema
    from fsm_provider.transfers.export.sort_buffer import Entry

T = TypeVar("T")

MAX_PAGES = 1_000_000
PROGRESS_EVERY = 20_000


class ExportResult(TypedDict):
    """The result of an export, for other tasks.

    :param manifest: the path of the manifest, which names the files.
    """

    manifest: str
    files: int
    rows: int
    bytes: int


def _parse_destination(name: str, value: Any) -> Any:
    return parse_text(name, value) if isinstance(value, str) else value


class FsmObjectStorageOperator(FsmOptionsOperator):
    """Base of operators that write files to any storage that Airflow reaches.

    :param destination: the folder, e.g. ``s3://bucket/forms/{{ ds }}``, or an ``ObjectStoragePath``
        (templated).
    :param object_storage_conn_id: the Airflow connection of the storage, where the destination does not
        name one itself, as ``s3://aws_default@bucket/forms`` does (templated).
    """

    records: ClassVar[str]
    """What is read; also the name of an export's files."""
    template_fields: tuple[str, ...] = ("fsm_conn_id", "destination", "object_storage_conn_id")
    option_parsers: ClassVar[OptionParsers] = {"destination": _parse_destination}

    def __init__(
        self,
        *,
        destination: ObjectStoragePath | str,
        object_storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.object_storage_conn_id = object_storage_conn_id

    def folder(self) -> ObjectStoragePath:
        """Return the destination as a path with its connection."""
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        conn_id = self.object_storage_conn_id
        # In Airflow 2, even None replaces the connection that the destination names.
        connection = {"conn_id": conn_id} if conn_id else {}
        return ObjectStoragePath(str(_parse_destination("destination", self.destination)), **connection)

    def written_paths(self) -> list[ObjectStoragePath]:
        """Return the folders and files that the task writes, for lineage."""
        return [self.folder()]

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Report to the OpenLineage provider what was read and written."""
        from fsm_provider.storage.lineage import openlineage, uri_for, uri_for_records

        return openlineage(
            inputs=[uri_for_records(self.fsm_conn_id, self.records)],
            outputs=map(uri_for, self.written_paths()),
        )


class FsmExportOperator(FsmObjectStorageOperator):
    """Base of operators that export a listing as files.

    The listing is read to its end before the first file is written. Meanwhile it is on the worker's disk, in
    a file that disappears with the task's process (in ``TMPDIR``, else ``/var/tmp``; as many bytes as the
    export has as text). Memory is bounded. Duplicate records are written once. Where the number of records
    differs from the service's ``meta.totalRecords``, the listing is read again, up to three times in all. Two
    readings of the same records are accepted, with a warning; otherwise the task fails and may be retried.

    Files are atomic. The last one is ``_manifest.json``: filters, columns, and the path, rows, bytes and
    sha256 of each file. The same records give the same bytes, unless the version of pyarrow changes. A
    repeated run writes its files under temporary names, then replaces those of the run before and removes the
    ones it did not write again; meanwhile there is no manifest. So each account, listing and window needs a
    folder of its own. A folder that holds another export is refused: the manifest names connection and host.

    All formats have the same columns, named as the service names them; a field of a nested object has that
    object's name and an underscore before it (``jobDetails_jobID``). They are 64-bit integers, text, or
    times in UTC (with microseconds). ``_extra`` holds, as JSON text, fields without a column and values that
    do not have their column's type; the column is then null. In CSV (RFC 4180, UTF-8), null and empty text
    are both empty. Text that a spreadsheet may take for a formula is not escaped.

    :param destination: the folder; see :class:`FsmObjectStorageOperator`, also for
        ``object_storage_conn_id``.
    :param format: ``jsonl``, ``csv``, or ``parquet`` (zstd), which needs the extra ``parquet`` (templated).
    :param query_params: query parameters beyond those of the specification (templated).
    :return: the manifest's path, and how many files, rows and bytes.
    """

    template_fields: tuple[str, ...] = (*FsmObjectStorageOperator.template_fields, "format")
    option_parsers: ClassVar[OptionParsers] = {
        **FsmObjectStorageOperator.option_parsers,
        "format": partial(parse_choice, choices=("jsonl", "csv", "parquet")),
    }

    def __init__(self, *, format: str = "jsonl", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.format = format

    def export(
        self,
        context: Context,
        filters: dict[str, Any],
        schema: Schema,
        list_records: Callable[[], Listing],
        entries: Callable[[Listing, Callable[[Row], bytes]], Iterator[Entry]],
        *,
        partitioned: bool = False,
    ) -> ExportResult:
        """Write the files.

        :param filters: which records are listed: the same JSON values in each run of the same export.
        :param list_records: starts a listing.
        :param entries: reads a listing, given the encoder of rows.
        :param partitioned: whether each folder gets a file of its own.
        """
        from fsm_provider.storage.atomic_files import AtomicFiles
        from fsm_provider.storage.lineage import report, uri_for_records
        from fsm_provider.transfers.export.folder import ExportFolder, Layout
        from fsm_provider.transfers.export.formats import format_for
        from fsm_provider.transfers.export.readings import read_completely

        options = self.options()
        format = format_for(options["format"])
        layout = Layout(f"{self.records}.{options['format']}", partitioned, format, schema)
        encode = format.encoder(schema)
        with AtomicFiles(self.folder(), context) as files:
            source = {"service": self.hook.client.settings.base_url, "connection": self.fsm_conn_id}
            folder = ExportFolder(files, {**source, "records": self.records, **filters})
            with read_completely(list_records, lambda listing: entries(listing, encode)) as buffer:
                written = folder.write(buffer, layout)
        report(self.hook, inputs=[uri_for_records(self.fsm_conn_id, self.records)])
        exported = ExportResult(
            manifest=str(folder.manifest), files=written.files, rows=written.rows, bytes=written.bytes
        )
        self.log.info("Exported %(rows)s rows, %(bytes)s bytes, in %(files)s files: %(manifest)s", exported)
        return exported

    def counted(self, records: Iterable[T]) -> Iterator[T]:
        """Yield the records, logging progress."""
        for number, record in enumerate(records, start=1):
            yield record
            if number % PROGRESS_EVERY == 0:
                self.log.info("%s records listed", number)
