"""Requests to emit forms of an asset again."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from fsm_provider.api.form_filter import format_time
from fsm_provider.api.parsing import warn_once
from fsm_provider.api.validation import parse_past, parse_time
from fsm_provider.polling.watch import FormWatch
from fsm_provider.state.assets import AssetStore

logger: logging.Logger = logging.getLogger(__name__)

REPLAY = "fsm_forms/replay"
"""Key of the last request."""


@dataclass(frozen=True)
class Replay:
    """A request to emit forms again; times have a zone.

    :param id: tells it apart from other requests.
    :param fsm_conn_id: the asset's connection; while the asset has another, the request waits.
    :param since: forms updated at or after this time.
    :param until: and before this one; None: all.
    """

    id: str
    fsm_conn_id: str
    since: datetime
    until: datetime | None

    @classmethod
    def parse(cls, stored: Any) -> Self:
        """Parse what :meth:`as_dict` has returned.

        :raises ValueError: if it is something else.
        """
        try:
            since, until = stored["since"], stored["until"]
            return cls(
                id=str(stored["id"]),
                fsm_conn_id=stored["fsm_conn_id"],
                since=parse_past("since", since),
                until=None if until is None else parse_time("until", until),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        until = self.until and self.until.isoformat()
        return {**asdict(self), "since": self.since.isoformat(), "until": until}

    def __str__(self) -> str:
        """Describe the forms."""
        before = f" and before {format_time(self.until)}" if self.until else ""
        return f"updated since {format_time(self.since)}{before}"

    def covers(self, updated: datetime | None) -> bool:
        """Return whether a form that was updated at this time, if known, is requested."""
        return updated is not None and self.since <= updated and (self.until is None or updated < self.until)


async def requested_replay(watch: FormWatch, store: AssetStore) -> Replay | None:
    """Return the last request for an asset with its connection; None if there is none, or none to read.

    :raises Exception: if the store cannot be read.
    """
    try:
        if (stored := await store.aget(REPLAY)) is None:
            return None
        replay = Replay.parse(stored)
    except ValueError as error:
        warn_once(
            logger,
            (watch["asset_name"], str(error)),
            "The replay requested of the asset '%s' is ignored, as it is not what the command stores: %s",
            watch["asset_name"],
            error,
        )
        return None
    return replay if replay.fsm_conn_id == watch["fsm_conn_id"] else None
