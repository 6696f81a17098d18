"""Criteria that decide when a sensor has found enough forms."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fsm_provider.api.form_filter import FormReference


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCriteria:
    """The forms that a sensor waits for.

    :param minimum_forms: number of forms, at least 1.
    :param form_names: only forms with these names count, and each name needs a form; empty: any form counts.
    """

    minimum_forms: int = 1
    form_names: tuple[str, ...] = ()

    def counts(self, reference: FormReference) -> bool:
        """Whether a form has one of the requested names, if there are any."""
        return not self.form_names or reference["formName"] in self.form_names

    def is_met_by(self, counted: Collection[FormReference]) -> bool:
        """Whether the forms that count are enough."""
        return len(counted) >= self.minimum_forms and not self.missing(counted)

    def missing(self, counted: Collection[FormReference]) -> list[str]:
        """Return the form names that no form has."""
        found = [reference["formName"] for reference in counted]
        return [name for name in self.form_names if name not in found]
