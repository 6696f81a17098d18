"""Base classes of the operators that write files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import check_found, parse_choice, parse_flag, parse_text, pluralize
from fsm_provider.operators.base import FsmBaseOperator, OptionParsers

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from fsm_provider.api.listing import Listing
    from fsm_provider.transfers.export import EncodedRecord, Encoder, Schema

MAX_PAGES = 100_000
FORMATS = ("jsonl", "csv", "parquet")
PACKAGES = {
    "s3": "apache-airflow-providers-amazon[s3fs]",
    "gs": "apache-airflow-providers-google",
    "abfs": "apache-airflow-providers-microsoft-azure",
}
"""By protocol, the package with which Airflow reaches a storage."""


class ExportResult(TypedDict):
    """The result of an export, for other tasks.

    :param path: the file, for ``ObjectStoragePath``.
    """

    path: str
    rows: int
    bytes: int


def _parse_destination(name: str, value: Any) -> Any:
    check_found(name, value)
    if isinstance(value, str):
        value = parse_text(name, value)
    elif not isinstance(value, PathLike) and not hasattr(value, "protocol"):
        raise FsmInputError(f"{name}: should be a path or a URL, not {type(value).__name__}")
    text = str(value)
    if not text.startswith("/") and "://" not in text:
        raise FsmInputError(
            f"{name}: {text} is relative, to a folder that depends on the worker: give an absolute "
            "path, or a URL such as s3://bucket/forms"
        )
    if "?versionId=" in text:
        raise FsmInputError(
            f"{name}: {text} is one version of an object, which nothing can write: leave out "
            "?versionId="
        )
    return value


def _parse_file(name: str, value: Any) -> Any:
    file = _parse_destination(name, value)
    if str(file).rpartition(".")[2] not in FORMATS:
        raise FsmInputError(
            f"{name}: {file} should be a file whose name ends in .jsonl, .csv or .parquet, "
            "in lower case"
        )
    return file


class FsmObjectStorageOperator(FsmBaseOperator):
    """Base of operators that write files to any storage that Airflow reaches.

    The destination names the storage's connection, as ``s3://aws_default@bucket/forms`` does.
    """

    records: ClassVar[str]
    """What it reads of the service, for Airflow's lineage: ``forms`` or other records."""
    template_fields: tuple[str, ...] = ("fsm_conn_id", "destination")
    option_parsers: ClassVar[OptionParsers] = {"destination": _parse_destination}

    def __init__(self, *, destination: ObjectStoragePath | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.destination = destination

    def destination_path(self) -> ObjectStoragePath:
        """Return the destination.

        :raises FsmInputError: naming the package that is missing to reach it.
        """
        from airflow.providers.common.compat import sdk

        url = str(self.options()["destination"])
        try:
            path = sdk.ObjectStoragePath(url)
            _ = path.fs  # created once, before threads share it
        except (ImportError, sdk.AirflowOptionalProviderFeatureException, ValueError) as error:
            protocol = url.partition("://")[0]
            package = PACKAGES.get(protocol, f"the provider package for {protocol}://")
            raise FsmInputError(f"destination: {url} needs {package} ({error})") from None
        return path


class FsmExportOperator(FsmObjectStorageOperator):
    """Base of operators that export a listing as a file.

    The file is atomic, and replaces an older one. Before it is written, the listing is read to its
    end, into a temporary file on the worker's disk (in ``TMPDIR``, else ``/var/tmp``). That one has
    as many bytes as the export has as text, and disappears with the task's process. Duplicate
    records are written once. Where the number of records differs from the service's
    ``meta.totalRecords``, the listing is read once more. If that reading differs from its totals,
    too, and from the first reading, the task fails, and may be retried. The same records give the
    same bytes with one version of pyarrow.

    All formats have the same columns, named as the service names them; a field of a nested object
    has that object's name and an underscore before it (``jobDetails_jobID``). They are 64-bit
    integers, text, or times in UTC (with microseconds). ``_extra`` holds, as JSON text, fields
    without a column and values that do not have their column's type; the column is then null. In
    CSV (RFC 4180, UTF-8), null and empty text are both empty.

    :param destination: the file, e.g. ``s3://bucket/forms.csv``, or an ``ObjectStoragePath``; it
        ends in ``.jsonl``, ``.csv`` or ``.parquet`` (zstd; needs the extra ``parquet``)
        (templated).
    :param quote_formulas: in CSV, put ``'`` before text that a spreadsheet would take for a
        formula: text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return
        (templated).
    :param encoding: of CSV: ``utf-8``, or ``utf-8-sig`` with the byte-order mark by which Excel
        knows UTF-8 (templated).
    :return: the file's path, and how many rows and bytes.
    """

    template_fields: tuple[str, ...] = (
        *FsmObjectStorageOperator.template_fields,
        "quote_formulas",
        "encoding",
    )
    option_parsers: ClassVar[OptionParsers] = {
        "destination": _parse_file,
        "quote_formulas": parse_flag,
        "encoding": partial(parse_choice, choices=("utf-8", "utf-8-sig")),
    }

    def __init__(
        self, *, quote_formulas: bool | str = False, encoding: str = "utf-8", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.quote_formulas = quote_formulas
        self.encoding = encoding

    def export(
        self,
        context: Context,
        schema: Schema,
        list_records: Callable[[], Listing],
        encode_records: Callable[[Encoder, Listing], Iterator[EncodedRecord]],
    ) -> ExportResult:
        """Write a listing to the file.

        :param list_records: begins to list the records; it is called again for a second reading.
        :param encode_records: makes rows of the records of a listing, and has each record's rows
            encoded.
        """
        from fsm_provider.storage import AtomicFiles, report_read
        from fsm_provider.transfers.export import format_for, read_completely

        path = self.destination_path()
        options = self.options()
        file_format = path.name.rpartition(".")[2]
        encode, write = format_for(
            file_format, schema, options["quote_formulas"], options["encoding"]
        )
        # The listing is read to its end here, before the file is opened.
        with (
            AtomicFiles(path.parent, context, part=path.name) as files,
            read_completely(list_records, partial(encode_records, encode)) as buffer,
            files.open(path.name) as file,
        ):
            write(file, buffer.chunks())
            size = file.tell()
        report_read(self.hook, self.records)
        self.log.info(
            "Exported %s, %s: %s", pluralize(buffer.rows, "row"), pluralize(size, "byte"), path
        )
        return ExportResult(path=str(path), rows=buffer.rows, bytes=size)
