"""New forms that were not emitted yet, by the poll that found them: a state machine without I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any

from fsm_provider.api.form_filter import FormReference


@dataclass(slots=True)
class NewForm:
    """A form as a poll returned it.

    :param version: what is remembered once it was emitted, a JSON value.
    :param updated: when it was updated, None if its record has no readable time.
    :param hour: hour of the chunk in which it is remembered.
    """

    reference: FormReference
    version: Any
    updated: datetime | None
    hour: str

    @property
    def id(self) -> str:
        """The form's identifier, as a key of JSON."""
        return str(self.reference["id"])


@dataclass(slots=True)
class _Poll:
    watermark: datetime
    forms: dict[str, NewForm]


class PendingForms:
    """The forms that are still to emit, one version of each: the newest.

    :ivar watermark: where a restart has to begin: it is before every poll that has found a pending form.
    """

    def __init__(self) -> None:
        self.watermark: datetime | None = None
        self._polls: list[_Poll] = []
        self._poll_by_id: dict[str, _Poll] = {}
        self._newest_first = False

    def __len__(self) -> int:
        return len(self._poll_by_id)

    def get(self, identifier: str) -> NewForm | None:
        """Return the pending version of a form, None if there is none."""
        poll = self._poll_by_id.get(identifier)
        return None if poll is None else poll.forms[identifier]

    def add(self, forms: Iterable[NewForm], watermark: datetime) -> None:
        """Add the new forms of a poll.

        :param watermark: where the next poll begins.
        """
        oldest_first = sorted(forms, key=_update)
        poll = _Poll(watermark, {form.id: form for form in oldest_first})
        for identifier in poll.forms:
            if replaced := self._poll_by_id.get(identifier):
                del replaced.forms[identifier]
            self._poll_by_id[identifier] = poll
        self._polls.append(poll)
        self._move_watermark()

    def next_event(self, max_forms: int) -> list[NewForm]:
        """Return the forms to emit next: in turn the oldest of the first poll, and the newest of the last."""
        if self._newest_first:
            forms = chain.from_iterable(reversed(poll.forms.values()) for poll in reversed(self._polls))
        else:
            forms = chain.from_iterable(poll.forms.values() for poll in self._polls)
        return list(islice(forms, max_forms))

    def remove(self, event: list[NewForm]) -> None:
        """Drop forms that were emitted; a form of which a newer version has come stays."""
        for form in event:
            if self.get(form.id) is form:
                del self._poll_by_id.pop(form.id).forms[form.id]
        self._newest_first = not self._newest_first
        self._move_watermark()

    def oldest_update(self) -> datetime | None:
        """Return when the first of the pending forms was updated, None if no form has a readable time."""
        forms = chain.from_iterable(poll.forms.values() for poll in self._polls)
        return min((form.updated for form in forms if form.updated), default=None)

    def _move_watermark(self) -> None:
        """Merge each poll without pending forms with the one before it."""
        polls: list[_Poll] = []
        for poll in self._polls:
            if poll.forms:
                polls.append(poll)
            elif polls:
                polls[-1].watermark = poll.watermark
            else:
                self.watermark = poll.watermark
        self._polls = polls


def _update(form: NewForm) -> float:
    return math.inf if form.updated is None else form.updated.timestamp()
