"""Base class of the sensors: poll failures that are tolerated, and what the log says of the wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
)

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.compat import reschedules, task_state_store
from fsm_provider.operators.base import (
    FsmBaseOperator,
    bad_arguments_are_refused,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.polling.wait_status import WaitStatus

FAILING_SINCE = "fsm_failing_since"
"""Key in the task's state store: since when the polls of a sensor in reschedule mode fail."""
MAX_WAIT = timedelta(days=3650)
"""What a longer ``timeout`` or ``log_interval`` counts as: MySQL stores no deadline after January 2038."""


class FsmBaseSensor(FsmBaseOperator, BaseSensorOperator):
    """Base of the sensors.

    :param poke_interval: seconds between two polls, at least 1.
    :param failure_tolerance: how long polls may fail with transient errors (the service is unreachable,
        busy or broken) before the task fails with the last error; seconds, or a ``timedelta``. In
        reschedule mode it needs Airflow 3.3: before, the first error fails the task. An error that is not
        transient, such as a refused token, fails the task at once.
    :param log_interval: seconds, or a ``timedelta``, between two lines of the log that say how the wait goes,
        at least 1; None: none.

    A ``timeout`` of more than ten years counts as ten years where a wait is deferred, and in the log.
    """

    def __init__(
        self,
        *,
        failure_tolerance: timedelta | float = 600.0,
        log_interval: timedelta | float | None = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(failure_tolerance, timedelta):
            failure_tolerance = failure_tolerance.total_seconds()
        if isinstance(log_interval, timedelta):
            log_interval = log_interval.total_seconds()
        self.failure_tolerance = failure_tolerance
        self.log_interval = log_interval
        self._status: WaitStatus | None = None
        self._failing_since: datetime | None = None
        with bad_arguments_are_refused():
            if not self.poke_interval >= 1:
                raise FsmInputError(f"poke_interval: {self.poke_interval:g} s is less than 1 s")
            if not failure_tolerance >= 0:
                raise FsmInputError(f"failure_tolerance: {failure_tolerance:g} s is negative")
            if log_interval is not None and not log_interval >= 1:
                raise FsmInputError(f"log_interval: {log_interval:g} s is less than 1 s")

    def target(self, context: Context) -> str:
        """Describe what the sensor waits for.

        :raises FsmInputError: naming an argument that is not as it should be.
        """
        raise NotImplementedError

    def poll(self, context: Context) -> PokeReturnValue:
        """Poll once, and log what is missing.

        :raises FsmError: if the poll failed; a transient error is tolerated for a time.
        """
        raise NotImplementedError

    def defer_if_wanted(self, context: Context) -> None:
        """Defer after a poll that does not end the wait; the default stays on the worker."""

    def execute(self, context: Context) -> Any:
        """Wait; the message of a timeout says for what, and how that went."""
        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            if self._status is None or not str(error).startswith("Sensor has timed out"):
                raise
            raise type(error)(self._status.timeout()) from None

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Poll once; tolerate a transient error for a time."""
        with permanent_errors_fail_the_task():
            status = self._status or self._begin(context)
        try:
            with permanent_errors_fail_the_task():
                polled = self.poll(context)
        except FsmError as error:
            status.fail(error)
            if not self._is_tolerated(error, context):
                raise
        else:
            status.succeed(datetime.now(UTC))
            self._forget_failures(context)
            if polled.is_done:
                return polled
        self._show_progress(status)
        self.defer_if_wanted(context)
        return False

    @contextmanager
    def _connection_may_be_lost(self, context: Context) -> Iterator[None]:
        """Have a connection that is not found be a transient error, if an earlier poll has found it."""
        try:
            yield
        except AirflowNotFoundException:
            from fsm_provider.polling.poller import connection_not_found

            if not self._has_polled(context):
                raise
            raise connection_not_found(self.fsm_conn_id) from None

    def _has_polled(self, context: Context) -> bool:
        """Whether there was a poll before this one, which found the connection."""
        return self.reschedule and reschedules(context)[0] is not None

    def _is_tolerated(self, error: FsmError, context: Context) -> bool:
        """Record a failed poll, and return whether the wait goes on."""
        if error.permanent:
            return False
        now = datetime.now(UTC)
        if (since := self._recorded_failure(context)) is None:
            since = now
            if self._is_one_process:
                self._failing_since = now
            elif (store := task_state_store(context)) is None:
                return False
            else:
                store.set(FAILING_SINCE, {"try": context["ti"].try_number, "since": now.isoformat()})
        if (now - since).total_seconds() >= self.failure_tolerance:
            return False
        self.log.warning("Polling failed, and goes on for up to %g s: %s", self.failure_tolerance, error)
        return True

    def _recorded_failure(self, context: Context) -> datetime | None:
        if self._is_one_process:
            return self._failing_since
        store = task_state_store(context)
        recorded = store.get(FAILING_SINCE) if store is not None else None
        if not isinstance(recorded, dict) or recorded.get("try") != context["ti"].try_number:
            return None
        return datetime.fromisoformat(recorded["since"])

    def _forget_failures(self, context: Context) -> None:
        if self._recorded_failure(context) is None:
            return
        self._failing_since = None
        if not self._is_one_process:
            task_state_store(context).delete(FAILING_SINCE)

    @property
    def _max_wait(self) -> timedelta:
        return _duration(self.timeout)

    @property
    def _is_one_process(self) -> bool:
        """Whether one process makes all of an attempt's polls on the worker."""
        return not self.reschedule

    def _begin(self, context: Context) -> WaitStatus:
        """Begin the wait in this process; log what it is for, unless an earlier process has."""
        now = datetime.now(UTC)
        began, polls = reschedules(context) if self.reschedule else (None, 0)
        self._status = self._status_for(context, began or now)
        if began is None:
            self.log.info("%s", self._status.start(self.poke_interval))
        self._shown_at = began or now
        if began is not None and self.log_interval is not None:
            last_poll = (now - began) * (1 - 1 / max(polls, 1))
            self._shown_at += last_poll - last_poll % _duration(self.log_interval)
        return self._status

    def _status_for(self, context: Context, began: datetime) -> WaitStatus:
        from fsm_provider.polling.wait_status import WaitStatus

        return WaitStatus(
            target=partial(self.target, context),
            began=began,
            until=began + self._max_wait,
        )

    def _show_progress(self, status: WaitStatus) -> None:
        now = datetime.now(UTC)
        if self.log_interval is not None and (now - self._shown_at).total_seconds() >= self.log_interval:
            self._shown_at = now
            self.log.info("%s", status.progress())


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, MAX_WAIT.total_seconds()))
