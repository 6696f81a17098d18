"""Send writes, each once: the one loop of all operators that write.

The calling thread alone touches the ledger; other threads do nothing but send. What has ended is recorded
before anything is looked up or claimed. Only what the ledger returns as claimed is sent.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmRepeatableWriteError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)
from fsm_provider.api.retry import Attempts, RetryPolicy, TimeLimit, clocks
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import (
    Change,
    Row,
    Write,
    came_to_nothing,
    check_input,
    claimed,
    new_claim,
    response_lost,
    succeeded,
)

if TYPE_CHECKING:
    from fsm_provider.writes.sql_ledger import SqlLedger
    from fsm_provider.writes.task_ledger import TaskLedger

logger: logging.Logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.5
"""Seconds between two looks at what others are sending."""
MAX_LOST_IN_A_ROW = 20
"""Lost responses in a row, after which the service counts as down."""
PASSING = FsmConnectionError | FsmRateLimitedError
"""Errors after which the same request may succeed: nothing came of it."""

Send = Callable[[Write, Mapping[str, str], TimeLimit], dict[str, Any]]
"""Sends a write once, with further headers; returns the response, with its ``id`` if it has one."""
Find = Callable[[Write], "int | str | None"]
"""Looks for what a write has made; returns its id, or None."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What may be sent again, and when.

    :param fsm_conn_id: the connection.
    :param by_key: a key is written once, whatever run asks.
    :param lease: seconds for which a request may be on its way.
    :param create_uncertain: send again what was uncertain when the attempt began.
    :param token_header: by whose value the service recognises a write that is sent again.
    :param token_hours: for how long it does.
    :param retry_policy: for requests of which nothing came.
    """

    fsm_conn_id: str
    by_key: bool
    lease: float
    create_uncertain: bool = False
    token_header: str | None = None
    token_hours: float = 20.0
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)

    def token_for(self, write: Write, row: Row) -> str | None:
        """Return the token to send a write with; that of an earlier request while the service knows it."""
        if self.token_header is None:
            return None
        return row.token if self.recognises(write, row) else f"{self.token_header.lower()}:{uuid4().hex}"

    def recognises(self, write: Write, row: Row) -> bool:
        """Return whether the service recognises an uncertain write if it is sent again."""
        if row.state != "uncertain" or row.token is None or row.digest != write.digest:
            return False
        is_known = timedelta(milliseconds=row.read_at - row.token_at) < timedelta(hours=self.token_hours)
        return is_known and row.token.partition(":")[0] == (self.token_header or "").lower()


@dataclass(eq=False)
class Pending:
    """A write in this attempt.

    :param row: as it was read last.
    :param may_create: it was uncertain when the attempt began, and has not been sent by it.
    :param is_lost: the response to this attempt's request was.
    :param is_over: this attempt does nothing more about it.
    :param response: what the service has returned to this attempt.
    :param error: why this attempt has not made it.
    """

    write: Write
    attempts: Attempts
    row: Row
    may_create: bool = False
    is_lost: bool = False
    is_over: bool = False
    awaited: str = ""
    response: dict[str, Any] | None = None
    error: FsmError | None = None

    @property
    def is_created(self) -> bool:
        return self.response is not None


class NotSentError(FsmError):
    """The attempt ended before a write that it had claimed was sent."""


@dataclass(eq=False)
class Runner:
    """Sends writes through a ledger.

    :param by: the task that runs.
    :param find: looks up what is uncertain, once no request of it can be on its way.
    :param reserve: reserves the next time at which a request may begin; returns the seconds until then.
    :param repeats: is called before a write is sent again, with the delay in seconds.
    :param ended: is called once for each write whose end this attempt knows.
    """

    ledger: SqlLedger | TaskLedger
    by: Task
    send: Send
    rules: Rules
    find: Find | None = None
    concurrency: int = 1
    reserve: Callable[[], float] = lambda: 0.0
    repeats: Callable[[float], None] = lambda _: None
    ended: Callable[[Pending], None] = lambda _: None

    def __post_init__(self) -> None:
        self.pending: dict[str, Pending] = {}
        self.stop_reason: str = ""
        self._waiting: deque[Pending] = deque()
        self._resting: list[Pending] = []
        self._flying: dict[Future[dict[str, Any]], tuple[Pending, Row]] = {}
        self._to_record: dict[str, Change] = {}
        self._resume_at = 0.0
        self._slot_at: float | None = None  # reserved, and not used yet
        self._lost_in_a_row = 0

    def load(self, writes: Collection[Write]) -> None:
        """Read what is known of writes, and refuse input that does not fit what was sent; send nothing.

        :raises FsmInputError: if a new write may be an earlier one, edited or moved.
        """
        rows = self.ledger.load([one.id for one in writes])
        for one in writes:
            row = rows.get(one.id) or one.planned(self.by)
            may_create = self.rules.create_uncertain and row.state in ("uncertain", "sending")
            self.pending[one.id] = Pending(one, Attempts(self.rules.retry_policy), row, may_create)
        is_mapped = self.by.map_index >= 0
        new = [one.digest for one in writes if not one.key_is_given and self.row_of(one).state == "free"]
        check_input(
            writes,
            rows,
            self.ledger.rows_of_task(self.by),
            may_have_moved=is_mapped and not self.ledger.is_shared,
            elsewhere=self.ledger.rows_of_other_indexes(self.by, new) if is_mapped else {},
        )

    def row_of(self, write: Write) -> Row:
        return self.pending[write.id].row

    def run(self) -> None:
        """Send what is missing; return once nothing is in flight and all is recorded.

        :raises Exception: what the ledger raises. What was in flight then is awaited, recorded or logged.
        """
        rows = self.ledger.plan([one.row for one in self.pending.values()])
        for one in self.pending.values():
            one.row = rows[one.write.id]
            self._sort(one)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="fsm-write") as pool:
            try:
                while True:
                    self._look_again()
                    self._claim_next(pool)
                    if not self._flying and (self.stop_reason or not (self._waiting or self._resting)):
                        break
                    self._await_ends()
            except BaseException as error:
                self.stop(f"the attempt failed: {type(error).__name__}")
                raise
            finally:
                for future in wait(self._flying).done:
                    self._take_end(*self._flying.pop(future), future)
                self._record_and_claim({})
        for one_id, row in self.ledger.load(self.pending.keys()).items():
            self.pending[one_id].row = row

    def stop(self, reason: str) -> None:
        """Send nothing more; what is in flight is finished and recorded. A signal handler may call it."""
        self.stop_reason = self.stop_reason or reason

    def _sort(self, one: Pending) -> None:
        """Put a write where its row says: to be sent, to be looked at again, or at its end."""
        row, waits = one.row, False
        if (
            one.is_over
            or row.state == "done"
            or (row.state == "uncertain" and row.digest != one.write.digest)
        ):
            self.ended(one)
        elif row.state == "free" or self.rules.recognises(one.write, row):
            self._waiting.append(one)
        elif row.state == "sending":
            self._rest(one, f"{row.by} is sending it")
        elif (waits := bool(self.find or one.may_create)) and row.lease_left > 0:
            self._rest(one, "its last request may still be on its way")
        elif waits and not (self.find and self._look_up(one)) and one.may_create:
            self._waiting.append(one)
        else:
            self.ended(one)

    def _rest(self, one: Pending, why: str) -> None:
        self._resting.append(one)
        if one.awaited != why:
            one.awaited, until = why, datetime.now(UTC) + timedelta(seconds=one.row.lease_left)
            logger.info("%s (key '%s'): %s: waiting until %s", one.row, one.write.key, why, f"{until:%T} UTC")

    def _look_again(self) -> None:
        if not self._resting or self.stop_reason:
            return
        self._record_and_claim({})
        resting, self._resting = self._resting, []
        rows = self.ledger.load([one.write.id for one in resting])
        for one in resting:
            one.row = rows[one.write.id]
            self._sort(one)

    def _look_up(self, one: Pending) -> bool:
        """Look in the service for what is uncertain; return whether that ends it."""
        row = one.row
        try:
            found_id = self.find(one.write) if self.find else None
        except Exception as error:  # noqa: BLE001 - it is the user's function
            logger.warning("%s could not be looked up: %s: %s", row, type(error).__name__, error)
            return True
        if found_id is None:
            return False
        one.row = self.ledger.record_found(row, {"id": found_id})
        if one.row.state != "done":
            logger.warning("%s: the look-up found %s, which may be that of another write", row, found_id)
        return True

    def _claim_next(self, pool: ThreadPoolExecutor) -> None:
        """Claim what may be sent now, and send what the ledger says is claimed."""
        since = clocks()  # before the transaction that claims begins
        claims: list[tuple[Pending, Row]] = []
        room = self.concurrency + self.concurrency // 2 - len(self._flying)
        while self._waiting and len(claims) < room and self._may_begin():
            one = self._waiting.popleft()
            token = self.rules.token_for(one.write, one.row)
            claims.append((one, new_claim(one.write, one.row, self.by, token)))
        lease = self.rules.lease
        rows = self._record_and_claim({claim.id: claimed(claim, one.row, lease) for one, claim in claims})
        for one, claim in claims:
            one.row = rows[claim.id]
            if one.row.owner == claim.owner and one.row.state == "sending":
                limit = TimeLimit(lease / 4, begin_within=lease / 2, since=since)
                self._flying[pool.submit(self._send, one.write, one.row, limit)] = one, one.row
            else:
                self._sort(one)

    def _record_and_claim(self, claims: Mapping[str, Change]) -> dict[str, Row]:
        """Record what has ended, and claim, in one transaction; put what has ended where its row says."""
        if not (self._to_record or claims):
            return {}
        try:
            rows = self.ledger.change({**self._to_record, **claims})
        except BaseException:
            for one in map(self.pending.__getitem__, self._to_record):
                if one.response is not None:
                    made = f"{one.write.kind} {kept(one.response).get('id', '')}"
                    logger.error("%s (key '%s') was made, and cannot be recorded", made, one.write.key)
            raise
        recorded, self._to_record = self._to_record, {}
        for one in map(self.pending.__getitem__, recorded):
            one.row = rows[one.write.id]
            if one.row.state == "done":
                self._lost_in_a_row = 0
            elif one.row.state == "uncertain":
                self._lost_in_a_row += one.is_lost or one.is_created
                if self._lost_in_a_row >= MAX_LOST_IN_A_ROW:
                    self.stop(f"{MAX_LOST_IN_A_ROW} lost responses in a row mean that the service is down")
            self._sort(one)
        return rows

    def _may_begin(self) -> bool:
        """Return whether pauses and the throttle let another request begin now."""
        if self.stop_reason or (now := time.monotonic()) < self._resume_at:
            return False
        if self._slot_at is None:
            self._slot_at = now + self.reserve()
        if now < self._slot_at:
            return False
        self._slot_at = None
        return True

    def _send(self, write: Write, claim: Row, limit: TimeLimit) -> dict[str, Any]:
        if self.stop_reason:
            raise NotSentError
        header, _, token = (claim.token or "").partition(":")
        try:
            return self.send(write, {header: token} if token else {}, limit)
        except FsmUnauthorisedError as error:  # before another thread sends
            self.stop(f"every further request would fail with: {error}")
            raise

    def _await_ends(self) -> None:
        """Wait until a request ends, or it is time to look again."""
        pause = max(self._resume_at, self._slot_at or 0.0) - time.monotonic()
        seconds = min(LOOK_INTERVAL, pause) if pause > 0 else LOOK_INTERVAL
        if not self._flying:
            time.sleep(seconds)
        for future in wait(self._flying, seconds, FIRST_COMPLETED).done if self._flying else ():
            self._take_end(*self._flying.pop(future), future)

    def _take_end(self, one: Pending, claim: Row, future: Future[dict[str, Any]]) -> None:
        """Take the end of a request; it is recorded next."""
        try:
            response = future.result()
        except NotSentError:
            self._to_record[claim.id] = came_to_nothing(claim, f"not sent: {self.stop_reason}")
        except FsmError as error:
            one.error = error
            if error.may_have_written:
                self._take_loss(one, claim, error)
                return
            self._to_record[claim.id] = came_to_nothing(claim, storable_text(error))
            one.is_over = not (isinstance(error, PASSING) and self._may_repeat(one, error))
            if one.is_over and isinstance(error, PASSING):
                self.stop(f"every further request would fail with: {error}")
        except BaseException as error:
            self._to_record[claim.id] = response_lost(claim, f"the request ended in {type(error).__name__}")
            raise
        else:
            one.response, one.error, one.is_over = response, None, True
            self._to_record[claim.id] = succeeded(claim, kept(response))

    def _take_loss(self, one: Pending, claim: Row, error: FsmError) -> None:
        self._to_record[claim.id] = response_lost(claim, storable_text(error))
        one.is_lost, one.may_create = True, False
        if claim.token and isinstance(error, FsmUncertainWriteError):
            one.error = FsmRepeatableWriteError(**vars(error))
            one.is_over = not self._may_repeat(one, one.error)

    def _may_repeat(self, one: Pending, error: FsmError) -> bool:
        """Begin nothing for a while; return False if the policy allows no further attempt."""
        try:
            delay = one.attempts.delay_after(error)
        except FsmError:
            return False
        self.repeats(delay)
        self._resume_at = max(self._resume_at, time.monotonic() + delay)
        return True


def kept(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row keeps of a response: its id and its times, and no other text."""
    result: dict[str, Any] = {}
    if isinstance(identifier := response.get("id"), int | str):
        result["id"] = identifier if isinstance(identifier, int) else identifier[:64]
    for name in ("createdOnDateTime", "lastUpdatedOnDateTime"):
        try:
            datetime.fromisoformat(response[name])
        except (KeyError, TypeError, ValueError):
            continue
        result[name] = response[name]
    return result


def storable_text(error: FsmError) -> str:
    """Return an error's text without what the service said, which may name people."""
    if isinstance(error, FsmUncertainWriteError):
        return error.reason
    return str(replace(error, body_excerpt="") if isinstance(error, FsmApiError) else error)
