"""Operators on assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.api.validation import JsonObject, pluralize
from fsm_provider.operators.base import FsmBaseOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class FsmListAssetDynamicFieldsOperator(FsmBaseOperator):
    """List the asset dynamic fields, their values and where they are used (section 4.1).

    :param query_params: query parameters; the specification shows none (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the records under the service's own names, in its order.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "query_params")

    def __init__(
        self,
        *,
        query_params: dict[str, Any] | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(fsm_conn_id=fsm_conn_id, **kwargs)
        self.query_params = query_params

    def perform(self, context: Context) -> list[JsonObject]:
        listing = self.hook.client.list_asset_dynamic_fields(params=self.query_params)
        records = [record.as_json() for record in listing]
        self.log.info("Listed %s", pluralize(len(records), "asset dynamic field"))
        return records
