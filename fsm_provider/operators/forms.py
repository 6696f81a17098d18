"""Operators that list completed forms."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from fsm_provider.api.forms import FORM_FILTERS, FormFilter, FormsXCom
from fsm_provider.api.validation import parse_choice, refuse_none
from fsm_provider.operators.base import FsmBaseOperator, bad_arguments_are_refused, is_known

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

ALL_FILTERS = (*FORM_FILTERS, "form_names")
XCOM: tuple[str, ...] = get_args(FormsXCom)


class FormFilterArguments:
    """Base of operators that list completed forms. Each form is also checked here against the filters.

    :param property_id: forms of one property (templated, as all of these).
    :param job_id: forms of one job.
    :param created_since: created at or after this time: ISO 8601 or a datetime, UTC unless it has a zone.
    :param updated_since: last updated at or after this time, as for ``created_since``.
    :param form_category: category of the form, checked by the service only.
    :param form_name_id: identifier of the form's name, checked by the service only.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param form_names: only forms with one of these names, checked here: a name, or a list.
    :param query_params: query parameters that the specification does not show.
    """

    narrowing: ClassVar[tuple[str, ...]] = ALL_FILTERS
    """The arguments that narrow the set of matching forms."""

    def check_filters(self) -> None:
        """Check the filters when the DAG is parsed, and note which are given."""
        self._given = {name for name in self.narrowing if getattr(self, name) is not None}
        self.form_filter(only_known=True)

    def form_filter(self, *, only_known: bool = False) -> FormFilter:
        """Return the filter that the arguments describe; ``only_known`` leaves out those with a template."""
        given = {name: getattr(self, name) for name in ALL_FILTERS if name in self.narrowing}
        if only_known:
            return FormFilter(**{name: value for name, value in given.items() if is_known(value)})
        if getattr(self, "_BaseOperator__from_mapped", False):  # what it maps may be None
            self._given |= vars(self)["_BaseOperator__init_kwargs"].keys() & {*self.narrowing}
        for name in sorted(self._given):  # without a value, too many forms would match
            refuse_none(name, getattr(self, name))
        return FormFilter(**given)


class FsmListFormsOperator(FormFilterArguments, FsmBaseOperator):
    """List completed forms.

    :param xcom: what XCom holds of each form: ``references`` (identifiers, name, times), ``ids``, or
        ``full`` records, with the URL of the PDF: it may be signed, and XCom is clear text.
    :return: the forms in the representation that ``xcom`` selects, in the service's order.
    """

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
        with bad_arguments_are_refused():
            self.check_filters()
            parse_choice("xcom", xcom, XCOM)

    def perform(self, context: Context) -> list[Any]:
        from fsm_provider.api.forms import for_xcom

        form_filter = self.form_filter()
        forms = self.hook.list_forms(params=self.query_params, **form_filter.as_dict())
        listed = for_xcom(forms, self.xcom)
        self.log.info("Listed %s forms (%s)", len(listed), form_filter)
        return listed
