"""Operators that export listings as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import read_choice, read_flag, read_time
from fsm_provider.operators.base import (
    FsmFormFilterOperator,
    FsmWriteOperator,
    Readers,
    bad_arguments_are_refused,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.models import Form
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


def _read_destination(name: str, value: Any) -> str:
    path = str(value).strip()
    if not path:
        raise FsmInputError(f"{name}: is empty: it should be a folder such as s3://bucket/forms/{{{{ ds }}}}")
    return path


def _read_bound(name: str, value: Any) -> datetime | None:
    return None if value is None else read_time(name, value)


class FsmExportOperator(FsmWriteOperator):
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

    :param destination: the folder, as Airflow's ``ObjectStoragePath`` reads it, e.g.
        ``s3://aws_default@bucket/forms/{{ ds }}`` (templated).
    :param format: ``jsonl``, ``csv``, or ``parquet`` (zstd), which needs the extra ``parquet``.
    :param query_params: query parameters that the specification does not show (templated).
    :return: the manifest's path, and how many files, rows and bytes.
    """

    readers: ClassVar[Readers] = {
        "destination": _read_destination,
        "format": partial(read_choice, choices=("jsonl", "csv", "parquet")),
    }

    def __init__(self, *, destination: str, format: str = "jsonl", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.format = format

    def export(
        self,
        context: Context,
        listing: dict[str, Any],
        schema: Schema,
        entries: Callable[[Callable[[Row], bytes]], Iterator[Entry]],
        *,
        partitioned: bool = False,
    ) -> Exported:
        """Write the files.

        :param listing: what is exported, the same JSON values in each run of the same export.
        :param entries: lists, given what a row comes to in the format.
        """
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        from fsm_provider.exports.folder import ExportFolder, Layout
        from fsm_provider.exports.formats import format_of
        from fsm_provider.exports.spool import Spool
        from fsm_provider.storing import WholeFiles

        options = self.options()
        format = format_of(options["format"])
        layout = Layout(f"{listing['records']}.{options['format']}", partitioned, format, schema)
        with WholeFiles(ObjectStoragePath(options["destination"]), context) as files, Spool() as spool:
            folder = ExportFolder(files, listing)
            spool.fill(entries(format.encoder(schema)))
            written = folder.write(spool, layout)
        # Lineage: the input is the listing, the outputs are `folder.manifest.parent / file["path"]`.
        exported = Exported(
            manifest=str(folder.manifest),
            files=len(written),
            rows=sum(file["rows"] for file in written),
            bytes=sum(file["bytes"] for file in written),
        )
        self.log.info("Exported %(rows)s rows, %(bytes)s bytes, in %(files)s files: %(manifest)s", exported)
        return exported

    def _counted(self, records: Iterable[T]) -> Iterator[T]:
        for number, record in enumerate(records, start=1):
            yield record
            if number % PROGRESS_EVERY == 0:
                self.log.info("%s records listed", number)


class FsmFormsToObjectStorageOperator(FsmExportOperator, FsmFormFilterOperator):
    """Export completed forms (4.3), one row each: see :class:`FsmExportOperator`.

    Files are sorted by ``createdOnDateTime`` and ``id``. Of a form that comes in two versions, the one that
    was updated last is written. The filters are those of
    :class:`~fsm_provider.operators.base.FsmFormFilterOperator`, and two more, which only this side applies:

    :param created_before: created before; ISO 8601 or a time, in UTC where it has no zone (templated).
    :param updated_before: last updated before; likewise (templated). A form whose time cannot be read is in
        every window.
    :param partition_by: a file for each ``day`` of creation in UTC (``day=2026-01-31/forms.jsonl``), or for
        each ``property`` (``property=7/forms.jsonl``); None: one file. A form without the value is in
        ``__HIVE_DEFAULT_PARTITION__``.
    :param with_pdf_address: add the column ``formPDFURL``. The address may be signed: whoever has the file
        can then read the form.
    """

    template_fields = (
        *FsmFormFilterOperator.template_fields,
        *("destination", "format", "created_before", "updated_before", "partition_by"),
    )
    readers: ClassVar[Readers] = {
        **FsmExportOperator.readers,
        "created_before": _read_bound,
        "updated_before": _read_bound,
        "partition_by": lambda name, value: value and read_choice(name, value, ("day", "property")),
        "with_pdf_address": read_flag,
    }

    def __init__(
        self,
        *,
        created_before: datetime | str | None = None,
        updated_before: datetime | str | None = None,
        partition_by: str | None = None,
        with_pdf_address: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.created_before = created_before
        self.updated_before = updated_before
        self.partition_by = partition_by
        self.with_pdf_address = with_pdf_address
        with bad_arguments_are_refused():
            self._filters(only_known=True)

    def execute(self, context: Context) -> Exported:
        """List and write the forms."""
        from fsm_provider.api.models import Form
        from fsm_provider.exports.entries import entries_of_forms
        from fsm_provider.exports.schema import Schema

        with permanent_errors_fail_the_task():
            options, filters = self.options(), self._filters()
            schema = Schema(Form, without=() if options["with_pdf_address"] else ("formPDFURL",))
            return self.export(
                context,
                {"records": "forms", "filters": filters, "query_params": self.query_params},
                schema,
                lambda encode: entries_of_forms(self._forms(), schema, encode, options["partition_by"]),
                partitioned=bool(options["partition_by"]),
            )

    def _forms(self) -> Iterator[Form]:
        options, wanted = self.options(), self.form_filter()
        forms = self.hook.list_forms(params=self.query_params, max_pages=MAX_PAGES, **wanted.as_dict())
        created_before, updated_before = options["created_before"], options["updated_before"]
        return (
            form
            for form in self._counted(forms)
            if _is_before(form.created_on_date_time, created_before)
            and _is_before(form.last_updated_on_date_time, updated_before)
        )

    def _filters(self, *, only_known: bool = False) -> dict[str, str]:
        """Give all filters as JSON values.

        :raises FsmInputError: naming the one that is not of its type, or a window that holds nothing.
        """
        options, wanted = self.options(only_known=only_known), self.form_filter(only_known=only_known)
        filters: dict[str, Any] = {**wanted.as_dict()}
        for field in ("created", "updated"):
            since, before = getattr(wanted, f"{field}_since"), options.get(f"{field}_before")
            if before is not None:
                filters[f"{field}_before"] = before.isoformat()
                if since is not None and before <= since:
                    raise FsmInputError(f"{field}_before: {before} is not after {field}_since: {since}")
        return filters


class FsmAssetDynamicFieldsToObjectStorageOperator(FsmExportOperator):
    """Export the asset dynamic fields (4.1): see :class:`FsmExportOperator`.

    There is one row for each value in each use; a field without values, or without uses, has one all the
    same. Columns are ``dynamicFieldID``, ``dynamicFieldName``, and those of a use and of a value:
    ``usedBy_scope``, ``values_id``, and so on. The file is sorted by ``dynamicFieldID``.
    """

    template_fields = ("fsm_conn_id", "query_params", "destination", "format")

    def __init__(self, *, query_params: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.query_params = query_params
        with bad_arguments_are_refused():
            self.options(only_known=True)

    def execute(self, context: Context) -> Exported:
        """List and write the fields."""
        from fsm_provider.api.models import AssetDynamicField
        from fsm_provider.exports.entries import entries_of_asset_fields
        from fsm_provider.exports.schema import Schema

        with permanent_errors_fail_the_task():
            schema = Schema(AssetDynamicField)
            return self.export(
                context,
                {"records": "asset_dynamic_fields", "query_params": self.query_params},
                schema,
                lambda encode: entries_of_asset_fields(
                    self._counted(
                        self.hook.list_asset_dynamic_fields(params=self.query_params, max_pages=MAX_PAGES)
                    ),
                    schema,
                    encode,
                ),
            )


def _is_before(found: Any, bound: datetime | None) -> bool:
    return bound is None or not isinstance(found, datetime) or found < bound
