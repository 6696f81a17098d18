"""References of forms, indexed by what most waits filter by: the job and the property."""

from __future__ import annotations

from collections.abc import Iterable

from fsm_provider.api.form_filter import FormFilter, FormReference


class FormIndex:
    """References by identifier, job and property."""

    def __init__(self, references: Iterable[FormReference] = ()) -> None:
        self.by_id: dict[int, FormReference] = {}
        self._by_job: dict[str, dict[int, FormReference]] = {}
        self._by_property: dict[str, dict[int, FormReference]] = {}
        for reference in references:
            self.put(reference)

    def put(self, reference: FormReference) -> None:
        """Add or replace a reference, whose form may have moved to another job or property."""
        identifier = reference["id"]
        known = self.by_id.get(identifier)
        if known is not None:
            for place in self._places(known):
                del place[identifier]
        self.by_id[identifier] = reference
        for place in self._places(reference):
            place[identifier] = reference

    def candidates(self, wanted: FormFilter) -> Iterable[FormReference]:
        """Return the references that may match a filter; the caller has to apply it."""
        if wanted.job_id is not None:
            return self._by_job.get(str(wanted.job_id), {}).values()
        if wanted.property_id is not None:
            return self._by_property.get(str(wanted.property_id), {}).values()
        return self.by_id.values()

    def _places(self, reference: FormReference) -> tuple[dict[int, FormReference], dict[int, FormReference]]:
        return (
            self._by_job.setdefault(str(reference["jobID"]), {}),
            self._by_property.setdefault(str(reference["propertyID"]), {}),
        )
