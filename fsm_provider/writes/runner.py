"""Send writes, each once: the one loop of all operators that write.

The calling thread alone touches the ledger; other threads do nothing but send. What has ended is
recorded before anything is looked up or claimed. Only what the ledger returns as claimed is sent.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsm_provider.api import errors
from fsm_provider.api.errors import FsmError, FsmNotSentError, FsmUncertainWriteError
from fsm_provider.api.request import TimeLimit, clocks
from fsm_provider.api.retry import RetryState
from fsm_provider.state.task import Task
from fsm_provider.writes import ledger as rules
from fsm_provider.writes.ledger import Change, LedgerEntry, WriteAttempt, result_of
from fsm_provider.writes.outcomes import MADE, why_not_made

if TYPE_CHECKING:
    from fsm_provider.hooks.fsm import FsmHook

logger: logging.Logger = logging.getLogger(__name__)

MIN_LEASE = 120.0  # seconds, at least, that a request may be on its way,
LEASE_TIMEOUTS = 4  # and at least so many timeouts of the connection
LOOK_INTERVAL = 0.5  # seconds between two looks at what others are sending
GATHER_SECONDS = 0.002  # after a request ends, so that those that end with it share its transaction
MAX_LOST_IN_A_ROW = 20  # lost responses, after which the service counts as down
TRANSIENT = errors.FsmConnectionError | errors.FsmRateLimitedError
"""Errors after which the same request may succeed: nothing came of it."""


@dataclass(eq=False)
class Runner:
    """Sends writes through a ledger.

    :param by: the task that runs.
    :param send: sends a write once, with headers; returns the response.
    :param find: looks up what is uncertain, once no request of it can be on its way; returns its
        id.
    :param create_uncertain: send again what was uncertain when the attempt began.
    """

    ledger: rules.Ledger
    by: Task
    hook: FsmHook
    send: Callable[[WriteAttempt, dict[str, str], TimeLimit], Any]
    find: Callable[[WriteAttempt], int | str | None] | None = None
    concurrency: int = 1
    create_uncertain: bool = False
    writes: dict[str, WriteAttempt] = field(init=False, default_factory=dict)
    stop_reason: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._client = self.hook.client
        self._lease = max(MIN_LEASE, LEASE_TIMEOUTS * self._client.settings.timeout)
        self._id, self._numbers = uuid4().hex, count()
        self._waiting: deque[WriteAttempt] = deque()
        self._resting: list[WriteAttempt] = []
        self._flying: dict[Future[Any], tuple[WriteAttempt, LedgerEntry]] = {}
        self._to_record: dict[str, Change] = {}
        self._resume_at = 0.0
        self._slot_at: float | None = None  # reserved, and not used yet
        self._lost_in_a_row = 0

    def load(self, writes: Collection[WriteAttempt]) -> None:
        """Read what is known of writes; refuse input in which a new one may be an earlier one,
        edited.
        """
        self.writes = {one.planned.id: one for one in writes}
        known = self.ledger.load(self.writes)
        for row_id, one in self.writes.items():
            one.row = known.get(row_id, one.planned)
            one.attempts = RetryState(self._client.settings.max_retries)
            one.may_resend = self.create_uncertain and one.row.state in ("uncertain", "sending")
        if len(known) < len(self.writes):
            rows = self.ledger.rows_of_task(self.by).values()
            rules.check_input(writes, known, rows, self.by.map_index >= 0, self.ledger.is_shared)

    def run(self) -> None:
        """Send what is missing; return once nothing is in flight and all is recorded.

        :raises Exception: what the ledger raises. What was in flight then is awaited, recorded or
            logged.
        """
        rows = self.ledger.plan([one.row for one in self.writes.values() if one.row is one.planned])
        for row_id, one in self.writes.items():
            one.row = rows.get(row_id, one.row)
            self._route(one)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="fsm-write") as pool:
            try:
                while True:
                    self._look_again()
                    self._claim_next(pool)
                    if not self._flying and (
                        self.stop_reason or not (self._waiting or self._resting)
                    ):
                        break
                    self._await_ends()
            except BaseException as error:
                self.stop(f"the attempt failed: {type(error).__name__}")
                raise
            finally:
                for future in wait(self._flying).done:
                    with suppress(BaseException):  # the first defect is raised
                        self._take_end(*self._flying.pop(future), future)
                self._record_and_claim({})
        # Others may have sent what this attempt has not.
        rows = self.ledger.load(
            [row_id for row_id, one in self.writes.items() if one.row.state != "done"]
        )
        for row_id, one in self.writes.items():
            one.row = rows.get(row_id, one.row)
            self.hook.metrics.incr("writes", outcome=one.outcome)

    def stop(self, reason: str) -> None:
        """Send nothing more; what is in flight is finished and recorded. A signal handler may call
        it.
        """
        self.stop_reason = self.stop_reason or reason

    def error_of(self, one: WriteAttempt) -> FsmError | None:
        """Return why a write is not known to have been made; None if it is."""
        return (
            None
            if one.outcome in MADE
            else why_not_made(one, self.stop_reason, self.hook.fsm_conn_id)
        )

    def _route(self, one: WriteAttempt) -> None:
        """Put a write where its row says: to be sent, to be looked at again, or at its end."""
        row = one.row
        is_open = row.state == "uncertain" and one.is_as_sent and not one.is_over
        if not one.is_over and (row.state == "free" or self._recognises(one)):
            self._waiting.append(one)
        elif not one.is_over and row.state == "sending":
            self._rest(one, f"{row.by} is sending it")
        elif is_open and (self.find or one.may_resend) and row.lease_left > 0:
            self._rest(one, "its last request may still be on its way")
        elif is_open and not self._look_up(one) and one.may_resend:
            self._waiting.append(one)
        elif one.outcome == "created":
            logger.info(
                "%s: created, %s", one.row, result_of(one.row, self._client.settings.web_url)
            )
        elif (error := self.error_of(one)) and len(self.writes) > 1:  # else the task fails with it
            logger.error("%s: %s: %s", one.row, one.outcome, error)

    def _rest(self, one: WriteAttempt, why: str) -> None:
        self._resting.append(one)
        if one.awaited != why:
            one.awaited, until = why, datetime.now(UTC) + timedelta(seconds=one.row.lease_left)
            logger.info(
                "%s (key '%s'): %s: waiting until %s", one.row, one.row.key, why, f"{until:%T} UTC"
            )

    def _look_again(self) -> None:
        if not self._resting or self.stop_reason:
            return
        self._record_and_claim({})
        resting, self._resting = self._resting, []
        rows = self.ledger.load([one.row.id for one in resting])
        for one in resting:
            one.row = rows[one.row.id]
            self._route(one)

    def _look_up(self, one: WriteAttempt) -> bool:
        """Look in the service for what is uncertain; return False only if it is not there."""
        row = one.row
        try:
            found_id = self.find(one) if self.find else None
        except Exception as error:  # noqa: BLE001 - it is the user's function
            logger.warning("%s could not be looked up: %s: %s", row, type(error).__name__, error)
            return True
        if found_id is None:
            return False
        change = partial(rules.found, row, {"id": found_id}, self.ledger.rivals_of(row))
        one.row = self.ledger.change({row.id: change})[row.id]
        if one.row.state == "done":
            logger.info("%s: the look-up found %s", row, found_id)
        else:
            logger.warning(
                "%s: the look-up found %s, which may be that of another write", row, found_id
            )
        return True

    def _recognises(self, one: WriteAttempt) -> bool:
        """Return whether the service recognises an uncertain write by its key if it is sent again."""
        row, settings = one.row, self._client.settings
        if row.state != "uncertain" or row.idempotency_key is None or not one.is_as_sent:
            return False
        is_known = row.read_at - row.key_first_sent_at < settings.idempotency_hours * 3_600_000
        header = (settings.idempotency_header or "").lower()
        return is_known and row.idempotency_header == header

    def _claim_of(self, one: WriteAttempt) -> LedgerEntry:
        """Return the claim of a write; its key is that of an earlier request while the service
        knows it.
        """
        header = self._client.settings.idempotency_header
        claim = replace(
            one.planned, by=self.by, state="sending", owner=f"{self._id}-{next(self._numbers)}"
        )
        if not header:
            return claim
        if self._recognises(one):
            return replace(
                claim,
                idempotency_header=one.row.idempotency_header,
                idempotency_key=one.row.idempotency_key,
                key_first_sent_at=one.row.key_first_sent_at,
            )
        return replace(claim, idempotency_header=header.lower(), idempotency_key=uuid4().hex)

    def _claim_next(self, pool: ThreadPoolExecutor) -> None:
        """Claim what may be sent now, and send what the ledger says is claimed."""
        since = clocks()  # before the transaction that claims begins
        claims: list[tuple[WriteAttempt, LedgerEntry]] = []
        room = self.concurrency + self.concurrency // 2 - len(self._flying)
        while self._waiting and len(claims) < room and self._take_slot():
            one = self._waiting.popleft()
            claims.append((one, self._claim_of(one)))
        changes = {
            claim.id: partial(rules.claimed, claim, one.row, self._lease) for one, claim in claims
        }
        rows = self._record_and_claim(changes)
        for one, claim in claims:
            one.row = rows[claim.id]
            if one.row.owner == claim.owner:
                limit = TimeLimit(self._lease / 4, begin_within=self._lease / 2, since=since)
                self._flying[pool.submit(self._send, one, one.row, limit)] = one, one.row
        for one, claim in claims:  # once all are sent, as it may look something up
            if one.row.owner != claim.owner:
                self._route(one)

    def _record_and_claim(self, claims: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Record what has ended, and claim, in one transaction; put what has ended where its row
        says.
        """
        if not (self._to_record or claims):
            return {}
        try:
            rows = self.ledger.change({**self._to_record, **claims})
        except BaseException as error:
            for one in map(self.writes.__getitem__, self._to_record):
                if one.is_created:
                    made = f"{one.row.kind} {kept(one.response).get('id', '')} (key '{one.row.key}') was made"
                    logger.error(text := f"{made}, and cannot be recorded: settle it with that id")
                    getattr(error, "add_detail", error.add_note)(
                        text
                    )  # SQLAlchemy's errors show details
            raise
        recorded, self._to_record = self._to_record, {}
        for one in map(self.writes.__getitem__, recorded):
            one.row = rows[one.row.id]
            if one.row.state == "done":
                self._lost_in_a_row = 0
            elif one.row.state == "uncertain":
                self._lost_in_a_row += one.is_lost or one.is_created
                if self._lost_in_a_row >= MAX_LOST_IN_A_ROW:
                    self.stop(
                        f"{MAX_LOST_IN_A_ROW} lost responses in a row mean that the service is down"
                    )
            self._route(one)
        return rows

    def _take_slot(self) -> bool:
        """Return whether pauses and the throttle let another request begin now."""
        if self.stop_reason or (now := time.monotonic()) < self._resume_at:
            return False
        if self._slot_at is None:
            self._slot_at = now + self._client.reserve()
        if now < self._slot_at:
            return False
        self._slot_at = None
        return True

    def _send(self, one: WriteAttempt, claim: LedgerEntry, limit: TimeLimit) -> Any:
        if self.stop_reason:
            raise FsmNotSentError(f"not sent: {self.stop_reason}")
        try:
            headers: dict[str, str] = {}
            if claim.idempotency_header and claim.idempotency_key:
                headers[claim.idempotency_header] = claim.idempotency_key
            return self.send(one, headers, limit)
        except errors.FsmUnauthorisedError as error:  # before another thread sends
            self.stop(f"every further request would fail with: {error}")
            raise

    def _await_ends(self) -> None:
        """Wait until a request ends, or it is time to look again."""
        pause = max(self._resume_at, self._slot_at or 0.0) - time.monotonic()
        seconds = min(LOOK_INTERVAL, pause) if pause > 0 else LOOK_INTERVAL
        wait(self._flying, seconds, FIRST_COMPLETED)
        time.sleep(GATHER_SECONDS if self._flying else seconds)
        for future in wait(self._flying, 0).done:
            self._take_end(*self._flying.pop(future), future)

    def _take_end(self, one: WriteAttempt, claim: LedgerEntry, future: Future[Any]) -> None:
        """Take the end of a request; it is recorded next."""
        try:
            one.response = future.result()
            change = partial(rules.succeeded, claim, kept(one.response))
            one.error, one.is_created, one.is_over = None, True, True
        except FsmError as error:
            one.error = error
            if error.may_have_written:
                change = partial(rules.response_lost, claim, storable_text(error))
                one.is_lost, one.may_resend = True, False
                if claim.idempotency_key and isinstance(error, FsmUncertainWriteError):
                    one.error = errors.FsmRepeatableWriteError(**vars(error))
                    one.is_over = not self._pause_for_retry(one, one.error)
            else:
                change = partial(rules.came_to_nothing, claim, storable_text(error))
                one.is_over = not (
                    isinstance(error, TRANSIENT) and self._pause_for_retry(one, error)
                )
                if one.is_over and isinstance(error, TRANSIENT):
                    self.stop(f"every further request would fail with: {error}")
        except BaseException as error:
            change = partial(
                rules.response_lost, claim, f"the request ended in {type(error).__name__}"
            )
            raise
        finally:
            self._to_record[claim.id] = change

    def _pause_for_retry(self, one: WriteAttempt, error: FsmError) -> bool:
        """Begin nothing for a while; return False if the policy allows no further attempt."""
        try:
            delay = one.attempts.delay_after(error)
        except FsmError:
            return False
        self._client.count_retry(delay)
        self._resume_at = max(self._resume_at, time.monotonic() + delay)
        return True


def kept(response: Any) -> dict[str, Any]:
    """Return what a row keeps of a response: its id and its times, and no other text."""
    result: dict[str, Any] = {}
    given = response if isinstance(response, dict) else {}
    if isinstance(identifier := given.get("id"), int | str):
        result["id"] = identifier if isinstance(identifier, int) else identifier[:64]
    for name in ("createdOnDateTime", "lastUpdatedOnDateTime"):
        with suppress(KeyError, TypeError, ValueError):
            datetime.fromisoformat(given[name])
            result[name] = given[name]
    return result


def storable_text(error: FsmError) -> str:
    """Return an error's text without what the service said, which may name people."""
    if isinstance(error, FsmUncertainWriteError):
        return error.reason
    return str(replace(error, body_excerpt="") if isinstance(error, errors.FsmApiError) else error)
