"""Formats for the bound of a time filter, and a check whether a service honours one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from fsm_provider.api.forms import format_time


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """A format of a time.

    :param date_only: whether it omits the time of day.
    """

    name: str
    write: Callable[[datetime], str]
    date_only: bool = False

    def bound_within(self, times: dict[int, datetime]) -> datetime | None:
        """Return a bound with some times before it and some not, None if there is none.

        :param times: of forms, by their identifiers.
        """
        bounds = sorted({self._without_fraction(time) for time in times.values()})
        return bounds[len(bounds) // 2] if len(bounds) > 1 else None

    def _without_fraction(self, time: datetime) -> datetime:
        rounded = time.astimezone(UTC).replace(microsecond=0)
        return rounded.replace(hour=0, minute=0, second=0) if self.date_only else rounded


OURS = TimeFormat("with Z and milliseconds", format_time)
OTHERS = (
    TimeFormat("with Z", lambda time: f"{time:%Y-%m-%dT%H:%M:%SZ}"),
    TimeFormat("with an offset", lambda time: f"{time:%Y-%m-%dT%H:%M:%S+00:00}"),
    TimeFormat("without a zone", lambda time: f"{time:%Y-%m-%d %H:%M:%S}"),
    TimeFormat("as a date", lambda time: f"{time:%Y-%m-%d}", date_only=True),
    TimeFormat("in seconds since 1970", lambda time: str(int(time.timestamp()))),
)


def deviation(
    bound: datetime, known: dict[int, datetime], listed: dict[int, datetime], *, complete: bool
) -> str | None:
    """Describe how a listing differs from the requested one, None if it does not.

    :param known: times of existing forms, by identifier; some are before the bound, some not.
    :param listed: times of the listed forms, by identifier.
    :param complete: whether the listing has no further page.
    """
    older = sum(time < bound for time in listed.values())
    if older:
        return f"let {older} older forms through"
    missing = sum(time >= bound and form_id not in listed for form_id, time in known.items())
    if not listed or (complete and missing):
        return f"left out {missing} forms that are not older"
    return None
