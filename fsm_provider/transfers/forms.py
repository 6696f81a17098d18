"""Operators that bring forms to files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import MAX_PDF_BYTES, read_choice, read_count, read_flag, read_json, read_time
from fsm_provider.operators.base import (
    FORM_FILTERS,
    FsmFormFilterOperator,
    Readers,
    bad_arguments_are_refused,
    fail_in_part,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.transfers.base import MAX_PAGES, FsmExportOperator, FsmFilesOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.models import Form
    from fsm_provider.paths import PathTemplate
    from fsm_provider.pdfs import PdfTransfer
    from fsm_provider.transfers.base import Exported

PDF_PATHS = "property={property_id}/job={job_id}/form={form_id}/v={version}.pdf"
PDF_MANIFEST = (
    "manifests/{{ ti.dag_id }}/{{ ti.task_id }}/{{ run_id }}"
    "{% if ti.map_index >= 0 %}/{{ ti.map_index }}{% endif %}.jsonl"
)


def _read_template(_: str, text: Any) -> PathTemplate:
    from fsm_provider.paths import PathTemplate

    return PathTemplate(text)


def _read_relative_path(name: str, text: Any) -> str:
    from fsm_provider.paths import read_relative_path

    return read_relative_path(name, text)


class FsmFormPdfsToObjectStorageOperator(FsmFilesOperator):
    """Bring the PDFs of forms (2.3) to any storage that Airflow reaches, each version of a form once.

    A file is there whole or not at all: it is written under another name, checked (``%PDF-``, size) and
    renamed, or given its name by the store itself. A version that is there is not fetched again, and nothing
    is overwritten: a form that changed is a further file. Killed at any moment and run again, the task
    fetches what is missing.

    The token goes to the connection's own scheme, host and port, and nowhere else. Where the address of a
    PDF is missing, has expired or is refused, the form is looked up in the listing, with the narrowest
    filter that lets all such forms through: bare ids alone mean the whole listing. What is stored then is
    the form's version of that moment, and the manifest says where it is newer than asked for.

    One form that fails does not stop the others; the task fails at the end, with a retry where that could
    help. After twenty failures one after the other that may pass the rest is not tried.

    :param forms: references, as the sensor, ``forms_from_events`` or a listing give them, full records or
        bare ids, as a list, the output of another task, or a template that gives JSON (templated).
    :param destination: the folder; see :class:`~fsm_provider.transfers.base.FsmFilesOperator`, also for
        ``object_storage_conn_id``.
    :param path_template: path of a PDF in it (templated): of ``{form_id}`` and ``{version}``, which it has to
        hold, ``{property_id}``, ``{job_id}`` and ``{form_name}``. The version is ``lastUpdatedOnDateTime``.
    :param manifest: path in it of a file with a JSON line for each of ``forms``, in order: see
        :class:`~fsm_provider.manifest.PdfOutcome`. It is written last, also where forms failed (templated).
        Where there is one already, a file that is not as it says is a failure, and stays.
    :param max_concurrency: PDFs at once, 1 to 64 (templated).
    :param max_bytes: a larger PDF is refused (templated).
    :param allow_private_addresses: let a PDF be on a host of an inner network, other than the connection's
        own (templated). Behind a proxy it is the proxy that decides what a name leads to.
    :param fsm_conn_id: the Airflow connection of the service (templated).
    :return: the manifest's address, and how many were ``stored``, ``skipped``, ``failed`` and ``not_tried``,
        with the ``bytes`` stored; also where the task fails.
    :raises FsmInputError: when the DAG is parsed, naming each bad argument.
    """

    template_fields: tuple[str, ...] = (
        *FsmFilesOperator.template_fields,
        *("forms", "path_template", "manifest", "max_concurrency", "max_bytes", "allow_private_addresses"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"forms": "json"}
    readers: ClassVar[Readers] = {
        **FsmFilesOperator.readers,
        "path_template": _read_template,
        "manifest": _read_relative_path,
        "max_concurrency": partial(read_count, most=64),
        "max_bytes": read_count,
        "allow_private_addresses": read_flag,
    }
    _transfer: PdfTransfer | None = None

    def __init__(
        self,
        *,
        forms: Any,
        path_template: str = PDF_PATHS,
        manifest: str = PDF_MANIFEST,
        max_concurrency: int | str = 4,
        max_bytes: int | str = MAX_PDF_BYTES,
        allow_private_addresses: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.forms = forms
        self.path_template = path_template
        self.manifest = manifest
        self.max_concurrency = max_concurrency
        self.max_bytes = max_bytes
        self.allow_private_addresses = allow_private_addresses
        with bad_arguments_are_refused():
            self.options(only_known=True)
            if isinstance(forms, list | tuple) and is_known(forms):
                _check_forms(forms)

    def execute(self, context: Context) -> dict[str, Any]:
        """Bring what is not there."""
        from fsm_provider.lineage import uri_of
        from fsm_provider.manifest import digests_by_path, write_manifest
        from fsm_provider.pdfs import PdfTransfer
        from fsm_provider.storing import WholeFiles

        with permanent_errors_fail_the_task():
            options = self.options()
            with WholeFiles(self.folder(), context) as files:
                self._transfer = transfer = PdfTransfer(
                    read_json("forms", self.forms),
                    fsm_conn_id=self.fsm_conn_id,
                    files=files,
                    template=options["path_template"],
                    earlier=digests_by_path(files, options["manifest"]),
                    concurrency=options["max_concurrency"],
                    max_bytes=options["max_bytes"],
                    allow_private_addresses=options["allow_private_addresses"],
                )
                transfer.run()
                if transfer.interrupted:
                    raise AirflowException("the task was stopped; a retry goes on from here")
                write_manifest(files, options["manifest"], transfer.outcomes)
                result = {"manifest": uri_of(files.folder / options["manifest"]), **transfer.counts}
        if not transfer.complete:
            context["ti"].xcom_push(key="return_value", value=result)
            failed = [outcome for outcome in transfer.outcomes if outcome["error"]]
            fail_in_part(
                transfer.summary,
                [f"forms[{one['index']}]: {one['error']}" for one in failed],
                all_are_in="the manifest",
                retry=transfer.another_try_could_help,
                passing_error=transfer.passing_error,
            )
        return result

    def on_kill(self) -> None:
        """Begin nothing more, and give up what is under way."""
        if self._transfer:
            self._transfer.interrupt()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell the OpenLineage provider what was read and written."""
        from fsm_provider.lineage import openlineage, records_of, uri_of

        folder = self.folder()
        return openlineage(
            inputs=[records_of(self.fsm_conn_id, "forms")],
            outputs=[uri_of(folder), uri_of(folder / self.manifest)],
        )


def _read_bound(name: str, value: Any) -> datetime | None:
    return None if value is None else read_time(name, value)


class FsmFormsToObjectStorageOperator(FsmExportOperator, FsmFormFilterOperator):
    """Export completed forms (4.3), one row each.

    How files are written is said by :class:`~fsm_provider.transfers.base.FsmExportOperator`. They are
    sorted by ``createdOnDateTime`` and ``id``. Of a form that comes in two versions, the one that was
    updated last is written. The filters are those of
    :class:`~fsm_provider.operators.base.FsmFormFilterOperator`, and two more, which only this side applies:

    :param created_before: created before; ISO 8601 or a time, in UTC where it has no zone (templated).
    :param updated_before: last updated before; likewise (templated). A form whose time cannot be read is in
        every window.
    :param partition_by: a file for each ``day`` of creation in UTC (``day=2026-01-31/forms.jsonl``), or for
        each ``property`` (``property=7/forms.jsonl``); None: one file. A form without the value is in
        ``__HIVE_DEFAULT_PARTITION__`` (templated).
    :param with_pdf_address: add the column ``formPDFURL``. The address may be signed: whoever has the file
        can then read the form (templated).
    """

    records = "forms"
    template_fields: tuple[str, ...] = (
        *FsmExportOperator.template_fields,
        *FORM_FILTERS,
        *("query_params", "created_before", "updated_before", "partition_by", "with_pdf_address"),
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
        with_pdf_address: bool | str = False,
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
                {"filters": filters, "query_params": self.query_params},
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
            for form in self.counted(forms)
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


def _check_forms(given: Any) -> None:
    from fsm_provider.api.forms import read_forms

    read_forms(given, UTC)


def _is_before(found: Any, bound: datetime | None) -> bool:
    return bound is None or not isinstance(found, datetime) or found < bound
