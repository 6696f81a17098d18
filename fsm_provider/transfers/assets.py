"""Operators that export asset dynamic fields to files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.operators.base import bad_arguments_refused
from fsm_provider.transfers.base import MAX_PAGES, ExportResult, FsmExportOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from fsm_provider.api.listing import Listing
    from fsm_provider.transfers.export import EncodedRecord, Encoder


class FsmAssetDynamicFieldsToObjectStorageOperator(FsmExportOperator):
    """Export the asset dynamic fields.

    :class:`~fsm_provider.transfers.base.FsmExportOperator` describes the file. There is one row for
    each value in each use; a field without values, or without uses, still has one row. Columns are
    ``dynamicFieldID``, ``dynamicFieldName``, and those of a use and of a value: ``usedBy_scope``,
    ``values_id``, and so on. It is sorted by ``dynamicFieldID``.
    """

    records = "asset_dynamic_fields"
    template_fields: tuple[str, ...] = (*FsmExportOperator.template_fields, "query_params")

    def __init__(
        self,
        *,
        destination: ObjectStoragePath | str,
        quote_formulas: bool | str = False,
        encoding: Literal["utf-8", "utf-8-sig"] | str = "utf-8",
        query_params: dict[str, Any] | None = None,
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
        self.query_params = query_params
        with bad_arguments_refused():
            self.options(literals_only=True)

    def perform(self, context: Context) -> ExportResult:
        from fsm_provider.api.listing import records_of
        from fsm_provider.api.models import LIST_ASSET_DYNAMIC_FIELDS, AssetDynamicField
        from fsm_provider.transfers.export import Schema, encode_asset_fields

        schema = Schema(AssetDynamicField)

        def list_fields() -> Listing:
            return self.hook.client.pages(
                LIST_ASSET_DYNAMIC_FIELDS.path,
                params=self.query_params,
                model=AssetDynamicField,
                max_pages=MAX_PAGES,
            )

        def encode_listed(encode: Encoder, listing: Listing) -> Iterator[EncodedRecord]:
            return encode_asset_fields(records_of(listing), schema, encode)

        return self.export(context, schema, list_fields, encode_listed)
