"""Ways to write the bound of a time filter (4.3), and whether a service has kept to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from fsm_provider.api.forms import format_time


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """A way to write a time.

    :param whole_days: whether it leaves the time of day out.
    """

    name: str
    write: Callable[[datetime], str]
    whole_days: bool = False

    def bound_within(self, times: dict[int, datetime]) -> datetime | None:
        """Choose a bound that some times are before and some are not, None where there is none.

        :param times: of forms, by their identifiers.
        """
        bounds = sorted({self._without_fraction(moment) for moment in times.values()})
        return bounds[len(bounds) // 2] if len(bounds) > 1 else None

    def _without_fraction(self, moment: datetime) -> datetime:
        whole = moment.astimezone(UTC).replace(microsecond=0)
        return whole.replace(hour=0, minute=0, second=0) if self.whole_days else whole


OURS = TimeFormat("with Z and milliseconds", format_time)
OTHERS = (
    TimeFormat("with Z", lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}"),
    TimeFormat("with an offset", lambda moment: f"{moment:%Y-%m-%dT%H:%M:%S+00:00}"),
    TimeFormat("without a zone", lambda moment: f"{moment:%Y-%m-%d %H:%M:%S}"),
    TimeFormat("as a date", lambda moment: f"{moment:%Y-%m-%d}", whole_days=True),
    TimeFormat("in seconds since 1970", lambda moment: str(int(moment.timestamp()))),
)


def departure(
    bound: datetime, known: dict[int, datetime], listed: dict[int, datetime], *, whole: bool
) -> str | None:
    """Say how a listing differs from what was asked for, None where it does not.

    :param known: times of forms that exist, by their identifiers; some are before the bound, some not.
    :param listed: the same of forms that were listed.
    :param whole: whether nothing more is to come.
    """
    older = sum(moment < bound for moment in listed.values())
    if older:
        return f"let {older} older forms through"
    missing = sum(moment >= bound and form_id not in listed for form_id, moment in known.items())
    if not listed or (whole and missing):
        return f"left out {missing} forms that are not older"
    return None
