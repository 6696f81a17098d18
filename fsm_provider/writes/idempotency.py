"""Keys by which the service recognises a write that is sent again, so that it takes effect once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsm_provider.api.retry import RetryPolicy
from fsm_provider.state.entries import Entry

if TYPE_CHECKING:
    from fsm_provider.api.settings import Settings


@dataclass(frozen=True)
class Idempotency:
    """The keys of a ledger's writes. The entry of a write keeps the one that it is sent with.

    :param header: the name of the header that has the key.
    :param service: identifies the service, which knows no key of another.
    :param remembered: how long the service recognises a key.
    :param policy: how often, and with which delays, a write is repeated.
    """

    header: str
    service: str
    remembered: timedelta
    policy: RetryPolicy

    @classmethod
    def from_settings(cls, settings: Settings, service: str) -> Idempotency | None:
        """Return the keys that the settings ask for, None if they name no header."""
        if settings.idempotency_header is None:
            return None
        remembered = timedelta(hours=settings.idempotency_hours)
        return cls(settings.idempotency_header, service, remembered, RetryPolicy(settings.max_retries))

    def for_intent(self, digest: str, before: Entry | None) -> dict[str, str]:
        """Return what the entry of a write keeps that is about to be sent.

        A write whose outcome is uncertain keeps its key, unless it has changed since. Any other gets one of
        its own: the service may remember that it has done the one before, or refused it.

        :param digest: that of the write.
        :param before: its entry so far.
        """
        if before and "result" not in before and self.recognises(digest, before):
            return dict(before["idempotency"])
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return {"header": self.header, "service": self.service, "key": uuid4().hex, "since": since}

    def recognises(self, digest: str, entry: Entry) -> bool:
        """Return whether the service recognises a write as what an entry says was sent."""
        sent: dict[str, Any] | None = entry.get("idempotency")
        if sent is None or entry["digest"] != digest:
            return False
        if sent["service"] != self.service or sent["header"].lower() != self.header.lower():
            return False
        return datetime.now(UTC) - datetime.fromisoformat(sent["since"]) < self.remembered
