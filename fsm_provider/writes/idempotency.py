"""Keys by which the service recognises a write that is sent again, so that it takes effect once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fsm_provider.api.retry import Attempts, RetryPolicy
from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import Entry
from fsm_provider.writes.write import Write

if TYPE_CHECKING:
    from fsm_provider.api.settings import Settings

DIGITS = 32
"""Length of a key."""


@dataclass(frozen=True)
class Idempotency:
    """The keys of a ledger's writes. What was sent with one is kept in the write's entry.

    :param header: the name of the header that has the key.
    :param service: identifies the service, which knows no key of another.
    :param scope: tells the keys of this ledger apart from those of others.
    :param remembered: how long the service recognises a key.
    :param policy: how often, and with which delays, a write is repeated.
    """

    header: str
    service: str
    scope: str
    remembered: timedelta
    policy: RetryPolicy

    @classmethod
    def from_settings(cls, settings: Settings, *, service: str, scope: str) -> Idempotency | None:
        """Return the keys that the settings ask for, None if they name no header."""
        if settings.idempotency_header is None:
            return None
        remembered = timedelta(hours=settings.idempotency_hours)
        return cls(settings.idempotency_header, service, scope, remembered, RetryPolicy(settings.max_retries))

    def attempts(self) -> Attempts:
        """Count the attempts of one write."""
        return Attempts(self.policy)

    def for_intent(self, write: Write, before: Entry | None) -> dict[str, Any]:
        """Return what the entry of a write that is about to be sent keeps.

        A write whose outcome is uncertain keeps the key that it was sent with, however it has changed since.
        One that is sent again after it was done gets another.

        :param before: its entry so far.
        """
        done_at = None
        if before and "result" in before:
            done_at = before["sent"][2]
        elif before and (sent := before.get("idempotency")) and self._is_of_service(sent):
            return dict(sent)
        return {
            "header": self.header,
            "service": self.service,
            "key": digest_for([self.service, self.scope, write.key, write.digest, done_at], DIGITS),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def recognises(self, entry: Entry) -> bool:
        """Return whether the service recognises what an entry says was sent, if it is sent again."""
        sent = entry.get("idempotency")
        if sent is None or not self._is_of_service(sent):
            return False
        return datetime.now(UTC) - datetime.fromisoformat(sent["since"]) < self.remembered

    def _is_of_service(self, sent: dict[str, Any]) -> bool:
        return (sent["header"].lower(), sent["service"]) == (self.header.lower(), self.service)
