"""What the operators share that export a listing as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from fsm_provider.api.inputs import read_choice, read_identifier
from fsm_provider.operators.base import FsmWriteOperator, Readers

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from fsm_provider.exports.schema import Row, Schema
    from fsm_provider.exports.spool import Entry

T = TypeVar("T")

MAX_PAGES = 1_000_000
PROGRESS_EVERY = 20_000


class Exported(TypedDict):
    """What an export gives to other tasks.

    :param manifest: the path of the manifest, which names the files.
    """

    manifest: str
    files: int
    rows: int
    bytes: int


def _read_destination(name: str, value: Any) -> Any:
    return read_identifier(name, value) if isinstance(value, str) else value


class FsmFilesOperator(FsmWriteOperator):
    """Base of what writes files to any storage that Airflow reaches.

    :param destination: the folder, e.g. ``s3://bucket/forms/{{ ds }}``, or an ``ObjectStoragePath``
        (templated).
    :param object_storage_conn_id: the Airflow connection of the storage, where the destination does not name
        one itself, as ``s3://aws_default@bucket/forms`` does (templated).
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "destination", "object_storage_conn_id")
    readers: ClassVar[Readers] = {"destination": _read_destination}

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
        """Give the destination as a path with its connection."""
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        conn_id = self.object_storage_conn_id
        # Airflow 2 takes None for a connection too, in the place of the destination's own.
        connection = {"conn_id": conn_id} if conn_id else {}
        return ObjectStoragePath(str(_read_destination("destination", self.destination)), **connection)


class FsmExportOperator(FsmFilesOperator):
    """Base of what exports a listing as files.

    The listing is read to its end before the first file is written; meanwhile it is on the worker's disk, in
    a file that is gone when the task is, however that ends (in ``TMPDIR``, else ``/var/tmp``; as many bytes
    as the export as text). Memory is bounded. A record that came twice is written once.

    Files are there whole or not at all, and last of all ``_manifest.json``: filters, columns, and of each
    file path, rows, bytes and sha256. The same records give the same bytes, but for another version of
    pyarrow. A run that is repeated replaces the files of the one before, and removes those that it does not
    write again; meanwhile there is no manifest. So each listing and each window needs a folder of its own,
    and one that holds another export is refused.

    All formats have the same columns, named as the service names them; a field of a nested object has that
    object's name and an underscore before it (``jobDetails_jobID``). They are integers of 64 bits, text, or
    times in UTC (with microseconds). ``_extra`` holds as JSON text what the service sends beyond them, and
    each value of another type than its column's, which is then null. In CSV (RFC 4180, UTF-8), null and empty
    text are both empty. Nothing is done to text that a spreadsheet may take for a formula.

    :param destination: the folder; see :class:`FsmFilesOperator`, also for ``object_storage_conn_id``.
    :param format: ``jsonl``, ``csv``, or ``parquet`` (zstd), which needs the extra ``parquet`` (templated).
    :param query_params: query parameters that the specification does not show (templated).
    :return: the manifest's path, and how many files, rows and bytes.
    """

    records: ClassVar[str]
    """What is listed, as the files are called."""
    template_fields: tuple[str, ...] = (*FsmFilesOperator.template_fields, "format")
    readers: ClassVar[Readers] = {
        **FsmFilesOperator.readers,
        "format": partial(read_choice, choices=("jsonl", "csv", "parquet")),
    }

    def __init__(self, *, format: str = "jsonl", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.format = format

    def export(
        self,
        context: Context,
        filters: dict[str, Any],
        schema: Schema,
        entries: Callable[[Callable[[Row], bytes]], Iterator[Entry]],
        *,
        partitioned: bool = False,
    ) -> Exported:
        """Write the files.

        :param filters: what of the records is listed, the same JSON values in each run of the same export.
        :param entries: lists, given what a row comes to in the format.
        """
        from fsm_provider.exports.folder import ExportFolder, Layout
        from fsm_provider.exports.formats import format_of
        from fsm_provider.exports.spool import Spool
        from fsm_provider.lineage import records_of, report
        from fsm_provider.storing import WholeFiles

        options = self.options()
        format = format_of(options["format"])
        layout = Layout(f"{self.records}.{options['format']}", partitioned, format, schema)
        with WholeFiles(self.folder(), context) as files, Spool() as spool:
            folder = ExportFolder(files, {"records": self.records, **filters})
            spool.fill(entries(format.encoder(schema)))
            written = folder.write(spool, layout)
        report(self.hook, inputs=[records_of(self.fsm_conn_id, self.records)])
        exported = Exported(
            manifest=str(folder.manifest), files=written.files, rows=written.rows, bytes=written.bytes
        )
        self.log.info("Exported %(rows)s rows, %(bytes)s bytes, in %(files)s files: %(manifest)s", exported)
        return exported

    def counted(self, records: Iterable[T]) -> Iterator[T]:
        """Give the records, and tell of them now and then."""
        for number, record in enumerate(records, start=1):
            yield record
            if number % PROGRESS_EVERY == 0:
                self.log.info("%s records listed", number)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell the OpenLineage provider what was read and written."""
        from fsm_provider.lineage import openlineage, records_of, uri_of

        return openlineage(
            inputs=[records_of(self.fsm_conn_id, self.records)], outputs=[uri_of(self.folder())]
        )
