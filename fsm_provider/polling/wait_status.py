"""What the log says of a wait; the same in every mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fsm_provider.api.errors import FsmError
from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.criteria import FormCriteria

MAX_NAMES = 5
MAX_NAME_LENGTH = 80
WORDS = {
    "property_id": "of property",
    "job_id": "of job",
    "created_since": "created since",
    "updated_since": "updated since",
}


@dataclass(slots=True, kw_only=True)
class WaitStatus:
    """How a wait goes, as text.

    :param target: describes what it waits for, when the log needs it; see :func:`target_for`.
    :param began: when it began.
    :param until: when it times out; None: not known.
    :param others: names of forms that match the filter, but not the names of the criteria.
    """

    target: Callable[[], str]
    began: datetime
    until: datetime | None
    others: Collection[str] = ()
    _succeeded: datetime | None = None
    _error: FsmError | None = None

    def succeed(self, now: datetime) -> None:
        """Record a poll that succeeded."""
        self._succeeded, self._error = now, None

    def fail(self, error: FsmError) -> None:
        """Record a poll that failed."""
        self._error = error

    def start(self, poll_interval: float) -> str:
        """Describe the wait at its start.

        :param poll_interval: seconds.
        """
        return f"Waiting for {self.target()}; polling every {poll_interval:g} s{self._until()}"

    def progress(self) -> str:
        """Describe the wait while it goes on."""
        return f"Still waiting for {self.target()}, for {self._duration()} now{self._until()}{self._state()}"

    def timeout(self) -> str:
        """Describe the wait at its end."""
        return f"Sensor has timed out after {self._duration()}: waited for {self.target()}{self._state()}"

    def other_forms(self) -> str:
        """Describe the forms under other names; empty if there are none."""
        if not self.others:
            return ""
        counts = Counter(map(_shown, self.others))
        by_count = sorted(counts, key=lambda name: (-counts[name], name))
        names = [f"{name} ({counts[name]})" if counts[name] > 1 else name for name in by_count]
        number = len(self.others)
        return f"{number} other form{'s' if number > 1 else ''} since then: {listed(names)}"

    def _until(self) -> str:
        return f" until {self.until.isoformat(timespec='seconds')}" if self.until else ""

    def _duration(self) -> timedelta:
        return timedelta(seconds=round((datetime.now(UTC) - self.began).total_seconds()))

    def _state(self) -> str:
        parts = []
        if self._succeeded:
            parts.append(f"the last successful poll was at {self._succeeded.isoformat(timespec='seconds')}")
        if others := self.other_forms():
            parts.append(others)
        if self._error:
            parts.append(f"the last poll failed: {self._error}")
        return "".join(f"; {part}" for part in parts)


def target_for(wanted: FormFilter, criteria: FormCriteria) -> str:
    """Describe the forms of a wait.

    :param wanted: its filter.
    :param criteria: when its forms are enough.
    """
    names, number = criteria.form_names, criteria.minimum_forms
    forms = "a form" if number == 1 else f"{number} forms"
    if names:
        forms = listed(names) if number <= len(names) else f"{forms} named {listed(names)}"
    filters = wanted.as_dict().items()
    return ", ".join([forms, *(f"{WORDS.get(name, f'with {name}')} {value}" for name, value in filters)])


def _shown(name: object) -> str:
    """Return a name that can be printed as it is; anything else that the service has, as Python writes it."""
    text = name if isinstance(name, str) and name.isprintable() else repr(name)
    return text[:MAX_NAME_LENGTH] or "(no name)"


def listed(names: Collection[str]) -> str:
    """List names, those of many forms in part."""
    shown = ", ".join(name[:MAX_NAME_LENGTH] for name in list(names)[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
