"""Operators that bring asset dynamic fields to files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.operators.base import bad_arguments_are_refused, permanent_errors_fail_the_task
from fsm_provider.transfers.base import MAX_PAGES, FsmExportOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.transfers.base import Exported


class FsmAssetDynamicFieldsToObjectStorageOperator(FsmExportOperator):
    """Export the asset dynamic fields (4.1).

    How files are written is said by :class:`~fsm_provider.transfers.base.FsmExportOperator`. There is one
    row for each value in each use; a field without values, or without uses, has one all the same. Columns
    are ``dynamicFieldID``, ``dynamicFieldName``, and those of a use and of a value: ``usedBy_scope``,
    ``values_id``, and so on. The file is sorted by ``dynamicFieldID``.
    """

    records = "asset_dynamic_fields"
    template_fields: tuple[str, ...] = (*FsmExportOperator.template_fields, "query_params")

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
                {"query_params": self.query_params},
                schema,
                lambda encode: entries_of_asset_fields(
                    self.counted(
                        self.hook.list_asset_dynamic_fields(params=self.query_params, max_pages=MAX_PAGES)
                    ),
                    schema,
                    encode,
                ),
            )
