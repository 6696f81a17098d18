"""Whether an order explains all that was seen of a write, by whoever saw it.

A history is a list of events of many keys, each with the time in which it took effect at some
point: what a service did for a request, what a task said, what a ledger holds, what a person
settled. An event that ended before another began comes before it; of those that overlap, any order
may explain what was seen. A history that no order explains shows a job made twice, an outcome that
was false when it was said, or something known that was forgotten.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

NEVER = float("inf")
"""The end of what has not ended: a request whose sender was killed."""
MADE = {"created", "existing", "done"}
NOT_MADE = {"not_created", "rejected", "free"}


@dataclass(frozen=True)
class Event:
    """Something that was seen of a key.

    :param who: ``service``: what became of a request; ``task``: the outcome that a task gave;
        ``ledger``: the state of the entry; ``person``: what was settled, ``done`` or ``free``.
    :param what: of the service ``made`` or ``refused``; else an outcome or a state.
    :param job_id: of the job that it made, or names.
    :param begin: seconds; ``end`` too.
    """

    key: str
    who: Literal["service", "task", "ledger", "person"]
    what: str
    job_id: int | None = None
    begin: float = 0.0
    end: float = NEVER

    def __str__(self) -> str:
        job = "" if self.job_id is None else f" {self.job_id}"
        return f"{self.who}: {self.what}{job} [{self.begin:.3f}, {self.end:.3f}]"


class _State(NamedTuple):
    """What is so of a key: the job that was made, and whether somebody who knows has said it."""

    job_id: int | None = None
    is_known: bool = False


def unexplained(events: Iterable[Event]) -> list[str]:
    """Return a text for each key whose events no order explains."""
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    texts: list[str] = []
    for key, of_key in by_key.items():
        if order_of(of_key) is None:
            seen = "; ".join(map(str, sorted(of_key, key=lambda event: event.begin)))
            texts.append(f"no order explains {key}: {seen}")
    return texts


def order_of(events: list[Event]) -> list[Event] | None:
    """Return an order that explains the events of one key; None if there is none."""

    @cache
    def order_after(rest: frozenset[int], state: _State) -> tuple[int, ...] | None:
        if not rest:
            return ()
        for place in _may_be_next(events, rest):
            after = _after(state, events[place])
            if after is None:
                continue
            order = order_after(rest - {place}, after)
            if order is not None:
                return (place, *order)
        return None

    order = order_after(frozenset(range(len(events))), _State())
    return None if order is None else [events[place] for place in order]


def _may_be_next(events: list[Event], rest: frozenset[int]) -> Iterator[int]:
    """Yield the places of events that no other of the rest has to come before."""
    first_end = min(events[place].end for place in rest)
    for place in sorted(rest):
        if events[place].begin <= first_end:
            yield place


def _after(state: _State, event: Event) -> _State | None:
    """Return what is so after an event; None if it cannot be then."""
    if event.who == "service":
        return _after_request(state, event)
    if event.what in MADE:
        is_so = event.job_id is not None and event.job_id == state.job_id
        return state._replace(is_known=True) if is_so else None
    if event.what in NOT_MADE:
        return state if state.job_id is None else None
    if event.what == "uncertain":
        # What was known once is not uncertain again.
        return None if state.is_known else state
    return None


def _after_request(state: _State, event: Event) -> _State | None:
    if event.what != "made":
        return state
    if state.job_id is not None or event.job_id is None:
        return None
    return state._replace(job_id=event.job_id)
