"""Operators that export forms and their PDFs to files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api import validation
from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import ALL_FILTERS, matching_forms, parse_forms
from fsm_provider.operators.base import (
    FormFilterArguments,
    OptionParsers,
    bad_arguments_refused,
    is_literal,
    push_xcom,
)
from fsm_provider.transfers.base import (
    MAX_PAGES,
    ExportResult,
    FsmExportOperator,
    FsmObjectStorageOperator,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from fsm_provider.api.forms import FormFilter
    from fsm_provider.api.listing import Listing
    from fsm_provider.api.models import Form
    from fsm_provider.transfers.export import EncodedRecord, Encoder
    from fsm_provider.transfers.pdfs import PdfTransfer


class FsmFormPdfsToObjectStorageOperator(FsmObjectStorageOperator):
    """Store the PDFs of forms in any storage that Airflow reaches, each version of a form once.

    The path of a PDF is ``property=7/job=21/form=5001/v=2026-11-22T014200.123000Z.pdf``, with the
    form's ``lastUpdatedOnDateTime`` in UTC. Files are atomic: one that is there is complete, and
    not fetched again. A changed form is a further file. What is there is known from one listing of
    the folder.

    The token goes to the connection's own scheme, host and port, and nowhere else. Where the URL of
    a PDF is missing, has expired or is refused, the form is looked up in the listing, with the
    narrowest filter that matches all such forms: for bare ids, that is the full listing. Its
    current version is then stored.

    One form that fails does not stop the others; the task fails at the end, and is retried where
    that could help. After twenty transient failures in a row, the remaining forms are not tried.

    :param forms: references, as the sensor, ``forms_from_events`` or a listing give them, full
        records or bare ids, as a list, the output of another task, or a template that gives JSON
        (templated).
    :param destination: the folder, e.g. ``s3://bucket/forms``, or an ``ObjectStoragePath``
        (templated).
    :param max_concurrency: PDFs at once, 1 to 64 (templated).
    :param max_bytes: a larger PDF is refused (templated).
    :param max_seconds: limit of the total time of all requests for one PDF (templated).
    :param allow_private_addresses: allow PDFs on hosts in a private network, other than the
        connection's own (templated). Behind a proxy, the proxy decides what a name resolves to.
    :param fsm_conn_id: the Airflow connection of the service (templated).
    :return: also where the task fails: ``paths``, one for each of ``forms``, in order, for
        ``ObjectStoragePath``, or None where the PDF is not stored; how many were ``stored``,
        ``skipped`` (stored before), ``failed`` and ``not_tried``; and the ``bytes`` stored.
    :raises FsmInputError: when the DAG is parsed, naming each bad argument.
    """

    records = "forms"
    template_fields: tuple[str, ...] = (
        *FsmObjectStorageOperator.template_fields,
        "forms",
        "max_concurrency",
        "max_bytes",
        "max_seconds",
        "allow_private_addresses",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"forms": "json"}
    option_parsers: ClassVar[OptionParsers] = {
        **FsmObjectStorageOperator.option_parsers,
        "max_concurrency": partial(validation.parse_count, max_value=64),
        "max_bytes": validation.parse_count,
        "max_seconds": validation.parse_count,
        "allow_private_addresses": validation.parse_flag,
    }
    _transfer: PdfTransfer | None = None

    def __init__(
        self,
        *,
        forms: Any,
        destination: ObjectStoragePath | str,
        max_concurrency: int | str = 4,
        max_bytes: int | str = validation.MAX_PDF_BYTES,
        max_seconds: int | str = validation.MAX_PDF_SECONDS,
        allow_private_addresses: bool | str = False,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(destination=destination, fsm_conn_id=fsm_conn_id, **kwargs)
        self.forms = forms
        self.max_concurrency = max_concurrency
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self.allow_private_addresses = allow_private_addresses
        with bad_arguments_refused():
            self.options(literals_only=True)
            if isinstance(forms, list | tuple) and is_literal(forms):
                parse_forms(forms, UTC)

    def perform(self, context: Context) -> dict[str, Any]:
        from fsm_provider.storage import AtomicFiles
        from fsm_provider.transfers.pdfs import PdfTransfer

        options = self.options()
        forms = validation.parse_json("forms", self.forms)
        with AtomicFiles(self.destination_path(), context) as files:
            transfer = PdfTransfer(
                forms,
                self.fsm_conn_id,
                files,
                max_concurrency=options["max_concurrency"],
                max_bytes=options["max_bytes"],
                max_seconds=options["max_seconds"],
                allow_private_addresses=options["allow_private_addresses"],
            )
            self._transfer = transfer
            result = transfer.run()
        if transfer.interrupted:
            raise AirflowException("the task was stopped; a retry continues from here")
        if None in result["paths"]:
            push_xcom(context, "return_value", result)
            transfer.fail()
        return result

    def on_kill(self) -> None:
        """Start no more downloads, and abandon those under way."""
        if self._transfer:
            self._transfer.interrupt()


class FsmFormsToObjectStorageOperator(FormFilterArguments, FsmExportOperator):
    """Export completed forms, one row each.

    :class:`~fsm_provider.transfers.base.FsmExportOperator` describes the file. It is sorted by
    ``createdOnDateTime`` and ``id``. If the listing returns two versions of a form, the one that
    was updated last is written. ``formPDFURL``, which may be signed, is left out.

    :param created_before: created before this time: ISO 8601 text or a ``datetime``, UTC if without
        a zone (templated). It is applied here rather than by the service; a form whose time cannot
        be parsed is in every window.
    """

    records = "forms"
    narrowing: ClassVar[tuple[str, ...]] = ALL_FILTERS
    template_fields: tuple[str, ...] = (
        *FsmExportOperator.template_fields,
        *ALL_FILTERS,
        "query_params",
        "created_before",
    )
    option_parsers: ClassVar[OptionParsers] = {
        **FsmExportOperator.option_parsers,
        "created_before": lambda name, value: (
            None if value is None else validation.parse_time(name, value)
        ),
    }

    def __init__(
        self,
        *,
        destination: ObjectStoragePath | str,
        property_id: int | str | None = None,
        job_id: int | str | None = None,
        created_since: datetime | str | None = None,
        created_before: datetime | str | None = None,
        updated_since: datetime | str | None = None,
        form_category: str | None = None,
        form_name_id: int | str | None = None,
        created_by_type: str | None = None,
        created_by_id: int | str | None = None,
        form_names: str | list[str] | None = None,
        query_params: dict[str, Any] | None = None,
        quote_formulas: bool | str = False,
        encoding: Literal["utf-8", "utf-8-sig"] | str = "utf-8",
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            destination=destination,
            quote_formulas=quote_formulas,
            encoding=encoding,
            fsm_conn_id=fsm_conn_id,
            **kwargs,
        )
        self.property_id = property_id
        self.job_id = job_id
        self.created_since = created_since
        self.updated_since = updated_since
        self.form_category = form_category
        self.form_name_id = form_name_id
        self.created_by_type = created_by_type
        self.created_by_id = created_by_id
        self.form_names = form_names
        self.query_params = query_params
        self.created_before = created_before
        with bad_arguments_refused():
            self.check_filters()
            options = self.options(literals_only=True)
            _check_window(options.get("created_before"), self.form_filter(literals_only=True))

    def perform(self, context: Context) -> ExportResult:
        from fsm_provider.api.models import Form
        from fsm_provider.transfers.export import Schema, encode_forms

        created_before = self.options()["created_before"]
        form_filter = self.form_filter()
        _check_window(created_before, form_filter)
        schema = Schema(Form, without="formPDFURL")

        def list_forms() -> Listing:
            return self.hook.client.form_pages(form_filter, self.query_params, max_pages=MAX_PAGES)

        def encode_listed(encode: Encoder, listing: Listing) -> Iterator[EncodedRecord]:
            matching = chain.from_iterable(matching_forms(listing, form_filter))
            return encode_forms(_forms_before(created_before, matching), schema, encode)

        return self.export(context, schema, list_forms, encode_listed)


def _check_window(before: datetime | None, form_filter: FormFilter) -> None:
    """Refuse a window that is empty."""
    since: Any = form_filter.created_since
    if before is not None and since is not None and before <= since:
        raise FsmInputError(f"created_before: {before} is not after created_since: {since}")


def _forms_before(end: datetime | None, forms: Iterable[Form]) -> Iterator[Form]:
    """Yield the forms that were created before the window's end, or have no time."""
    for form in forms:
        created: Any = form.created_on_date_time
        has_time = isinstance(created, datetime)
        if end is None or not has_time or created < end:
            yield form
