"""What a deferred sensor waits for, in words: the task stores it, and the page shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter

WAITING_KWARG = "waiting"
"""Of the arguments with which a task is deferred: Airflow keeps them until it has ended."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a sensor waited for when it last deferred. Times are seconds since 1970.

    :param missing: names of forms.
    :param found: names of forms that count.
    :param text: what a timeout would say.
    :param since: when the wait began; ``until``: when it ends.
    :param forms_since: the bound from which forms count; None: not known, as older versions do not
        store it.
    :param polled_at: when the task's last successful poll began; None: none has succeeded.
    :param problem: why the last poll failed.
    """

    fsm_conn_id: str
    job_id: str | None
    property_id: str | None
    missing: list[str]
    found: list[str]
    text: str
    since: float
    until: float
    polled_at: float | None
    problem: str
    forms_since: float | None = None

    def as_kwargs(self) -> dict[str, str]:
        """Return it as an argument of a deferral: as text, which no version of Airflow wraps."""
        return {WAITING_KWARG: json.dumps(asdict(self))}


def waiting_in(next_kwargs: Any) -> Waiting | None:
    """Return what is in the arguments of a deferred task; None if there is nothing of ours."""
    from pydantic import ValidationError

    text = next_kwargs.get(WAITING_KWARG) if isinstance(next_kwargs, Mapping) else None
    try:
        return _adapter().validate_json(text if isinstance(text, str) else "")
    except ValidationError:
        return None


@lru_cache
def _adapter() -> TypeAdapter[Waiting]:
    """Return pydantic's validation: to make it takes half a millisecond."""
    from pydantic import TypeAdapter

    return TypeAdapter(Waiting)


def text_of_field(name: str, value: str) -> str:
    """Return a field as it stands in the text of stored arguments: JSON, as a text of JSON."""
    field = json.dumps({name: value})[1:-1]
    return json.dumps(field)[1:-1]
