"""Send writes, each once: the one loop of all operators that write."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from fsm_provider.api import errors
from fsm_provider.api.errors import FsmError, FsmNotSentError, FsmUncertainWriteError
from fsm_provider.api.models import Record
from fsm_provider.api.request import ApiRequest, TimeLimit, clocks
from fsm_provider.api.retry import RetryState
from fsm_provider.state.task import Task
from fsm_provider.writes import ledger as rules
from fsm_provider.writes.advice import Advice
from fsm_provider.writes.attempt import MADE, WriteAttempt, check_input
from fsm_provider.writes.ledger import Change, Ledger, LedgerEntry, describe_result
from fsm_provider.writes.outcomes import why_not_made

if TYPE_CHECKING:
    from fsm_provider.hooks.fsm import FsmHook

logger: logging.Logger = logging.getLogger(__name__)

MIN_LEASE = 120.0  # seconds, at least, that a request may be on its way,
LEASE_TIMEOUTS = 4  # and at least so many timeouts of the connection
LOOK_INTERVAL = 0.5  # seconds, at most, between two looks at what others are sending
GATHER_SECONDS = 0.002  # after a request ends, so that those that end with it share its transaction
MAX_LOST_IN_A_ROW = 20  # lost responses, after which the service counts as down
SECONDS_PER_HOUR = 3600
UNAVAILABLE = errors.FsmConnectionError | errors.FsmRateLimitedError
"""The service was not reached, or limits the rate: nothing was written, and it may be later."""


class Sender(Protocol):
    """Sends requests for the runner, each once: the client, or what does more around that."""

    def send(
        self, request: ApiRequest, *, headers: Mapping[str, str], limit: TimeLimit
    ) -> Record | Any:
        """Send a request with further headers; return a record or JSON values. In any thread."""


@dataclass(eq=False)
class Runner:
    """Sends the writes of one attempt of a task through a ledger, each once.

    An operator makes a runner and calls :meth:`load` and then :meth:`run`, in the task's thread.
    It reads the outcomes of the writes once :meth:`run` has returned or raised. That thread alone
    touches the ledger; the threads of a pool send, and stop the runner if the token is refused. A
    write goes this way:

    1. It waits in ``_ready`` until the task's thread has claimed it, together with others.
    2. Only what the ledger returns as claimed is given to the pool. It is in ``_in_flight`` until
       its request has ended.
    3. What has ended goes to ``_to_record``, and is recorded by the next transaction, before
       anything else is looked up.
    4. Its entry then says what is next: it is sent again; or it waits in ``_blocked`` while another
       task, or a request that was lost, may still write it; or its end is logged.

    Airflow's signal handler may call :meth:`stop` at any moment: then nothing more is sent.
    Whatever ends the loop, what is in flight is awaited and recorded first.

    :param task: the task that runs.
    :param create_uncertain: send again what was uncertain when the attempt began.
    """

    ledger: Ledger
    task: Task
    hook: FsmHook
    sender: Sender
    concurrency: int = 1
    create_uncertain: bool = False
    writes: dict[str, WriteAttempt] = field(init=False, default_factory=dict)
    stop_reason: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._client = self.hook.client
        self._lease = max(MIN_LEASE, LEASE_TIMEOUTS * self._client.settings.timeout)
        self._key_lifetime = self._client.settings.idempotency_hours * SECONDS_PER_HOUR
        is_mapped = self.task.map_index >= 0
        self._advice = Advice(self.hook.fsm_conn_id, is_mapped, self.ledger.is_shared)
        self._ready = deque[WriteAttempt]()
        self._blocked: list[WriteAttempt] = []
        self._in_flight: dict[Future[Any], tuple[WriteAttempt, LedgerEntry]] = {}
        self._to_record: dict[str, Change] = {}
        self._paused_until = 0.0
        self._reserved_at: float | None = None  # by max_requests_per_second, and not used yet
        self._lost_in_a_row = 0

    def load(self, writes: Collection[WriteAttempt]) -> None:
        """Read what is known of the writes.

        :raises FsmInputError: if a new one may be an earlier one, edited or moved.
        """
        self.writes = {write.intended.id: write for write in writes}
        known = self.ledger.load(self.writes)
        for entry_id, write in self.writes.items():
            write.entry = known.get(entry_id, write.intended)
            write.retries = RetryState(self._client.settings.max_retries)
            was_open = write.entry.state in ("uncertain", "sending")
            write.resend_allowed = self.create_uncertain and was_open
        if len(known) < len(self.writes):
            entries = self.ledger.entries_of_task(self.task).values()
            check_input(writes, known, entries, self._advice)

    def writes_to_send(self) -> list[WriteAttempt]:
        """Return what :meth:`run` would send, as far as is known once it is loaded."""
        return [
            write
            for write in self.writes.values()
            if write.entry.state == "free" or write.resend_allowed or self._is_recognised(write)
        ]

    def run(self) -> None:
        """Send what is missing; return once nothing is in flight and all is recorded.

        :raises Exception: what the ledger raises. What was in flight then is awaited, recorded or
            logged.
        """
        self._plan()
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="fsm-write") as pool:
            try:
                self._send_all(pool)
            except BaseException as error:
                self.stop(f"the attempt failed: {type(error).__name__}")
                raise
            finally:
                wait(self._in_flight)
                while self._in_flight:
                    with suppress(BaseException):  # the first defect is raised already
                        self._take_ended()
                self._record_rest()
        self._read_final_entries()

    def stop(self, reason: str) -> None:
        """Send nothing more; what is in flight is finished and recorded.

        A signal handler may call it. The first reason counts.
        """
        self.stop_reason = self.stop_reason or reason

    def error_of(self, write: WriteAttempt) -> FsmError | None:
        """Return why a write is not known to have been made; None if it is."""
        if write.outcome in MADE:
            return None
        return why_not_made(write, self.stop_reason, self._advice)

    # The steps of a run.

    def _plan(self) -> None:
        """Record all writes before the first is claimed; put each where its entry says."""
        new = [write.entry for write in self.writes.values() if write.entry is write.intended]
        planned = self.ledger.plan(new)
        for entry_id, write in self.writes.items():
            write.entry = planned.get(entry_id, write.entry)
            self._route(write)

    def _send_all(self, pool: ThreadPoolExecutor) -> None:
        while True:
            if self._blocked and not self.stop_reason:
                self._look_again()
            self._claim_next(pool)
            has_more_to_send = (self._ready or self._blocked) and not self.stop_reason
            if not self._in_flight and not has_more_to_send:
                return
            self._await_ends()

    def _read_final_entries(self) -> None:
        """Read again what this attempt has not sent, as others may have; count the outcomes."""
        writes = self.writes.values()
        entries = self.ledger.load(
            [write.entry.id for write in writes if write.entry.state != "done"]
        )
        for write in writes:
            write.entry = entries.get(write.entry.id, write.entry)
            self.hook.metrics.incr("writes", outcome=write.outcome)

    # Where a write goes next.

    def _route(self, write: WriteAttempt) -> None:
        """Put a write where its entry says: to be sent, to be looked at again, or at its end."""
        state = write.entry.state
        if write.finished:
            self._report(write)
        elif state == "free" or self._is_recognised(write):
            self._ready.append(write)
        elif state == "sending":
            self._block(write, f"{write.entry.sent_by} is sending it")
        elif state == "uncertain" and write.matches_intent:
            self._route_uncertain(write)
        else:
            self._report(write)

    def _route_uncertain(self, write: WriteAttempt) -> None:
        """Look it up, or have it sent again, once no request of it can be on its way."""
        can_go_on = write.find is not None or write.resend_allowed
        if not can_go_on:
            self._report(write)
            return
        if write.entry.lease_left > 0:
            self._block(write, "its last request may still be on its way")
            return
        is_absent = self._look_up(write)
        if is_absent and write.resend_allowed:
            self._ready.append(write)
        else:
            self._report(write)

    def _block(self, write: WriteAttempt, why: str) -> None:
        self._blocked.append(write)
        if write.logged_wait == why:
            return
        write.logged_wait = why
        entry = write.entry
        until = datetime.now(UTC) + timedelta(seconds=entry.lease_left)
        logger.info("%s (key '%s'): %s: waiting until %s UTC", entry, entry.key, why, f"{until:%T}")

    def _report(self, write: WriteAttempt) -> None:
        """Log a creation, or why one of many was not made; a single error is the task's."""
        if write.outcome == "created":
            result = describe_result(write.entry, self._client.settings.web_url)
            logger.info("%s: created, %s", write.entry, result)
            return
        error = self.error_of(write)
        if error is not None and len(self.writes) > 1:
            logger.error("%s: %s: %s", write.entry, write.outcome, error)

    def _look_again(self) -> None:
        """Read the entries of what is blocked, once what has ended is recorded."""
        for write in self._record({}):
            self._route(write)
        blocked = self._blocked
        self._blocked = []
        entries = self.ledger.load([write.entry.id for write in blocked])
        for write in blocked:
            # A row that is gone is claimed, which the ledger refuses.
            write.entry = entries.get(write.entry.id, write.intended)
            self._route(write)

    def _look_up(self, write: WriteAttempt) -> bool:
        """Look an uncertain write up in the service, and record what is found.

        Return whether it is not there: also if nobody can look; not if the look-up fails, or finds
        what may be another's.
        """
        entry = write.entry
        if write.find is None:
            return True
        try:
            found_id = write.find()
        except Exception as error:  # noqa: BLE001 - it is the user's function
            logger.warning("%s could not be looked up: %s: %s", entry, type(error).__name__, error)
            return False
        if found_id is None:
            return True
        rivals = self.ledger.rivals_of(entry)
        owner = uuid4().hex
        change = partial(rules.record_lookup, entry, {"id": found_id}, rivals, owner)
        write.entry = self.ledger.change({entry.id: change})[entry.id]
        if write.entry.owner == owner:
            logger.info("%s: the look-up found %s", entry, found_id)
        else:
            logger.warning(
                "%s: the look-up found %s, which may be that of another write", entry, found_id
            )
        return False

    def _is_recognised(self, write: WriteAttempt) -> bool:
        """Return whether the service knows an uncertain write by its key if it is sent again."""
        entry = write.entry
        settings = self._client.settings
        if entry.state != "uncertain" or entry.idempotency_key is None or not write.matches_intent:
            return False
        header = (settings.idempotency_header or "").lower()
        return entry.key_age < self._key_lifetime and entry.idempotency_header == header

    # Claiming and sending.

    def _claim_next(self, pool: ThreadPoolExecutor) -> None:
        """Claim what may be sent now, and send what the ledger says is claimed."""
        since = clocks()  # before the transaction that claims begins
        claims: dict[str, LedgerEntry] = {}
        changes = {}
        # Half as many again as threads: what is claimed waits for a thread, not a thread for it.
        room = self.concurrency + self.concurrency // 2 - len(self._in_flight)
        while self._ready and len(claims) < room:
            if not self._may_begin():
                break
            write = self._ready.popleft()
            claim = self._claim_for(write)
            claims[claim.id] = claim
            changes[claim.id] = partial(
                rules.claim, claim, write.entry, self._lease, self._key_lifetime
            )
        to_route = self._record(changes)
        for entry_id, claim in claims.items():
            write = self.writes[entry_id]
            if write.entry.owner != claim.owner:
                to_route.append(write)
                continue
            write.was_claimed = True
            # It begins in the first half of its lease, or never.
            limit = TimeLimit(self._lease / 4, begin_within=self._lease / 2, since=since)
            future = pool.submit(self._send, write.request, write.entry, limit)
            self._in_flight[future] = (write, write.entry)
        for write in to_route:  # once all are sent, as it may look something up
            self._route(write)

    def _claim_for(self, write: WriteAttempt) -> LedgerEntry:
        """Return the claim of a write; its key is that of an earlier request, if that is known."""
        claim = replace(write.intended, sent_by=self.task, state="sending", owner=uuid4().hex)
        header = self._client.settings.idempotency_header
        if not header:
            return claim
        if self._is_recognised(write):
            return replace(
                claim,
                idempotency_header=write.entry.idempotency_header,
                idempotency_key=write.entry.idempotency_key,
                key_first_sent_at=write.entry.key_first_sent_at,
            )
        return replace(claim, idempotency_header=header.lower(), idempotency_key=uuid4().hex)

    def _send(self, request: ApiRequest, claimed: LedgerEntry, limit: TimeLimit) -> Any:
        """Send one request; return its response as JSON values. In a thread of the pool."""
        if self.stop_reason:
            raise FsmNotSentError(f"not sent: {self.stop_reason}")
        headers = {}
        if claimed.idempotency_header and claimed.idempotency_key:
            headers[claimed.idempotency_header] = claimed.idempotency_key
        try:
            response = self.sender.send(request, headers=headers, limit=limit)
        except errors.FsmUnauthorisedError as error:  # before another thread sends
            self.stop(f"every further request would fail with: {error}")
            raise
        return response.as_json() if isinstance(response, Record) else response

    def _record(self, claims: Mapping[str, Change]) -> list[WriteAttempt]:
        """Record what has ended, and claim, in one transaction; return what has ended."""
        ended = [self.writes[entry_id] for entry_id in self._to_record]
        changes = {**self._to_record, **claims}
        if not changes:
            return []
        for entry_id, entry in self.ledger.change(changes).items():
            self.writes[entry_id].entry = entry
        self._to_record = {}
        for write in ended:
            self._count_lost(write)
        return ended

    def _record_rest(self) -> None:
        """Record what has ended last; say in the log and in the error what cannot be recorded."""
        try:
            ended = self._record({})
        except BaseException as error:
            self._report_unrecorded(error)
            raise
        for write in ended:
            self._route(write)

    def _report_unrecorded(self, error: BaseException) -> None:
        """Say in the log and in the error what was made, and stands in no ledger."""
        # SQLAlchemy's errors show details, and no notes.
        add_detail = getattr(error, "add_detail", error.add_note)
        for entry_id in self._to_record:
            write = self.writes[entry_id]
            if write.is_created:
                made_id = stored_result(write.response).get("id")
                text = (
                    f"{write.entry.kind} {made_id or ''} (key '{write.entry.key}') was made, and "
                    f"cannot be recorded: {self._advice.settle_as_made(write.entry, made_id)}"
                )
                logger.error(text)
                add_detail(f"{text}\n")  # a parenthesis may follow

    def _count_lost(self, write: WriteAttempt) -> None:
        """Stop after many responses in a row that were lost, or whose id is that of another."""
        error = write.error
        has_conflict = write.is_created and write.entry.state == "uncertain"
        is_at_work = isinstance(error, errors.FsmKeyInUseError)
        is_lost = error is not None and error.may_have_written and not is_at_work
        if has_conflict or is_lost:
            self._lost_in_a_row += 1
        elif write.is_created or isinstance(error, errors.FsmApiError):  # the service is there
            self._lost_in_a_row = 0
        if self._lost_in_a_row >= MAX_LOST_IN_A_ROW:
            self.stop(f"{MAX_LOST_IN_A_ROW} lost responses in a row mean that the service is down")

    # Pauses.

    def _may_begin(self) -> bool:
        """Return whether pauses and the throttle let another request begin now."""
        now = time.monotonic()
        if self.stop_reason or now < self._paused_until:
            return False
        if self._reserved_at is None:
            self._reserved_at = now + self._client.reserve()
        if now < self._reserved_at:
            return False
        self._reserved_at = None
        return True

    def _pause_for_retry(self, write: WriteAttempt, error: FsmError) -> bool:
        """Begin nothing for a while; return False if the policy allows no further attempt."""
        try:
            delay = write.retries.delay_after(error)
        except FsmError:
            return False
        self._client.count_retry(delay)
        self._paused_until = max(self._paused_until, time.monotonic() + delay)
        return True

    def _await_ends(self) -> None:
        """Wait until a request ends, or it is time to look again."""
        next_start = max(self._paused_until, self._reserved_at or 0.0)
        seconds = next_start - time.monotonic()
        if not 0 < seconds < LOOK_INTERVAL:
            seconds = LOOK_INTERVAL
        if self._in_flight:
            wait(self._in_flight, seconds, FIRST_COMPLETED)
            time.sleep(GATHER_SECONDS)
        else:
            time.sleep(seconds)
        self._take_ended()

    # What a request has come to.

    def _take_ended(self) -> None:
        """Take the ends of all requests that have ended; they are recorded next."""
        for future in wait(self._in_flight, 0).done:
            write, claimed = self._in_flight.pop(future)
            self._take_end(write, claimed, future)

    def _take_end(self, write: WriteAttempt, claimed: LedgerEntry, future: Future[Any]) -> None:
        try:
            write.response = future.result()
        except FsmError as error:
            self._to_record[claimed.id] = self._take_error(write, claimed, error)
        except BaseException as error:
            text = f"the request ended in {type(error).__name__}"
            self._to_record[claimed.id] = partial(rules.record_lost_response, claimed, text)
            raise
        else:
            write.error = None
            write.is_created = True
            write.finished = True
            result = stored_result(write.response)
            self._to_record[claimed.id] = partial(rules.record_success, claimed, result)

    def _take_error(self, write: WriteAttempt, claimed: LedgerEntry, error: FsmError) -> Change:
        """Decide whether a write is sent again after an error; return what to record.

        All sending pauses, or stops, if the error concerns the service. A write without a key whose
        response was lost is not finished: it may be looked up.
        """
        has_key = claimed.idempotency_key is not None
        if has_key:
            error = error_with_key(error)
        write.error = error
        if error.may_have_written:
            write.is_lost = True
            write.resend_allowed = False  # never twice in one attempt
            if has_key:
                write.finished = not self._pause_for_retry(write, error)
            return partial(rules.record_lost_response, claimed, storable_text(error))
        if isinstance(error, UNAVAILABLE):
            write.finished = not self._pause_for_retry(write, error)
            if write.finished:
                self.stop(f"every further request would fail with: {error}")
        else:
            write.finished = True
        return partial(rules.record_refusal, claimed, storable_text(error))


def error_with_key(error: FsmError) -> FsmError:
    """Return the error of a write that was sent with an idempotency key.

    The service recognises it: it may be sent again, whatever became of it.
    """
    recognised: FsmError
    if isinstance(error, FsmUncertainWriteError):
        recognised = errors.FsmRepeatableWriteError(**vars(error))
    elif isinstance(error, errors.FsmConflictError) and error.retry_after is not None:
        recognised = errors.FsmKeyInUseError(**vars(error))
    else:
        return error
    recognised.__cause__ = error.__cause__  # not the error, which says that it is not repeated
    return recognised


def stored_result(response: Any) -> dict[str, Any]:
    """Return what an entry keeps of a response: its id and its times, and no other text."""
    if not isinstance(response, dict):
        return {}
    result = {}
    identifier = response.get("id")
    if isinstance(identifier, str):
        identifier = identifier[:64]
    if isinstance(identifier, int | str):
        result["id"] = identifier
    for name in ("createdOnDateTime", "lastUpdatedOnDateTime"):
        with suppress(KeyError, TypeError, ValueError):
            datetime.fromisoformat(response[name])
            result[name] = response[name]
    return result


def storable_text(error: FsmError) -> str:
    """Return an error's text without what the service said, which may name people."""
    if isinstance(error, FsmUncertainWriteError):
        return error.reason
    if isinstance(error, errors.FsmApiError):
        return str(replace(error, body_excerpt=""))
    return str(error)
