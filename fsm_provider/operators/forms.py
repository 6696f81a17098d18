"""Operators that list completed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.operators.base import FsmFormResultOperator, permanent_errors_fail_the_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class FsmListFormsOperator(FsmFormResultOperator):
    """List completed forms.

    Takes the arguments of :class:`~fsm_provider.operators.base.FsmFormResultOperator`.

    :return: the forms in the representation that ``xcom`` selects, in the service's order.
    """

    def execute(self, context: Context) -> list[Any]:
        from fsm_provider.api.forms import for_xcom

        with permanent_errors_fail_the_task():
            form_filter = self.form_filter()
            forms = self.hook.list_forms(params=self.query_params, **form_filter.as_dict())
            listed = for_xcom(forms, self.xcom)
        self.log.info("Listed %s forms (%s)", len(listed), form_filter)
        return listed
