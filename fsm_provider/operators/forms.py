"""Operators that list completed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.operators.base import FsmFormsToXComOperator, permanent_errors_fail_the_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class FsmListFormsOperator(FsmFormsToXComOperator):
    """List completed forms (4.3).

    The arguments are those of :class:`~fsm_provider.operators.base.FsmFormsToXComOperator`.

    :return: the forms as ``xcom`` says, in the service's order.
    """

    def execute(self, context: Context) -> list[Any]:
        """List the forms."""
        from fsm_provider.api.forms import for_xcom

        with permanent_errors_fail_the_task():
            wanted = self.form_filter()
            forms = self.hook.list_forms(params=self.query_params, **wanted.as_dict())
            listed = for_xcom(forms, self.xcom)
        self.log.info("Listed %s forms (%s)", len(listed), wanted)
        return listed
