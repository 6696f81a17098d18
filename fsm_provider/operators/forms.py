"""Operators that list completed forms."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from fsm_provider.api.forms import ALL_FILTERS, FormsXCom, for_xcom
from fsm_provider.api.validation import parse_choice, pluralize
from fsm_provider.operators.base import FormFilterArguments, FsmBaseOperator, bad_arguments_refused

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

XCOM: tuple[str, ...] = get_args(FormsXCom)


class FsmListFormsOperator(FormFilterArguments, FsmBaseOperator):
    """List completed forms (section 4.3 of the service's specification).

    :param xcom: what XCom holds of each form: ``references`` (identifiers, name, times), ``ids``,
        or ``full`` records, with the URL of the PDF: it may be signed, and XCom is clear text.
    :return: the forms in the representation that ``xcom`` selects, in the service's order.
    """

    narrowing: ClassVar[tuple[str, ...]] = ALL_FILTERS
    template_fields: tuple[str, ...] = ("fsm_conn_id", *ALL_FILTERS, "query_params")

    def __init__(
        self,
        *,
        property_id: int | str | None = None,
        job_id: int | str | None = None,
        created_since: datetime | str | None = None,
        updated_since: datetime | str | None = None,
        form_category: str | None = None,
        form_name_id: int | str | None = None,
        created_by_type: str | None = None,
        created_by_id: int | str | None = None,
        form_names: str | list[str] | None = None,
        query_params: dict[str, Any] | None = None,
        xcom: Literal["references", "ids", "full"] = "references",
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(fsm_conn_id=fsm_conn_id, **kwargs)
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
        self.xcom = xcom
        with bad_arguments_refused():
            self.check_filters()
            parse_choice("xcom", xcom, XCOM)

    def perform(self, context: Context) -> list[Any]:
        form_filter = self.form_filter()
        forms = self.hook.client.list_forms(params=self.query_params, **form_filter.as_dict())
        listed = for_xcom(forms, self.xcom)
        self.log.info("Listed %s (%s)", pluralize(len(listed), "form"), form_filter)
        return listed
