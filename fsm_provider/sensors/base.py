"""Base class of the sensors: poll failures that are tolerated, and what a timeout says.

Airflow calls ``execute`` in the process of the task: once in poke mode, once after each pause in
reschedule mode; a deferrable sensor calls it as Airflow resumes it. It calls ``begin``, and lets
Airflow's own sensor call ``poke``, in poke mode until the wait is over. Each ``poke`` calls
``poll``, and if that does not end the wait, ``defer_if_wanted``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from inspect import unwrap
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
)

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.validation import JsonObject, ResultT, parse_seconds
from fsm_provider.compat import first_poll_of
from fsm_provider.operators.base import (
    FsmArgumentError,
    FsmBaseOperator,
    bad_arguments_refused,
    permanent_errors_fail_the_task,
    push_xcom,
)
from fsm_provider.polling.limits import give_up_at, in_daemon_thread, pause_after

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, PokeReturnValue

MODES = (
    "mode: should be poke or reschedule; to wait in the triggerer, FsmFormSensor takes "
    "deferrable=True"
)
SHORTEST_POLL = 10.0
"""Seconds that a poll is given at least, even if the wait ends before."""


class OutOfTimeError(Exception):
    """A read of the service was not over when the wait was."""


class FsmBaseSensor(FsmBaseOperator, BaseSensorOperator):
    """Base of the sensors. Their ``poke_interval`` is at least 1 s.

    A timeout says what is missing, in its message and as the XCom ``missing``.

    A poll that is not over at the timeout is given up.

    :param failure_tolerance: how long polls may fail with transient errors (the service is
        unreachable, busy or broken) before the task fails with the last error; seconds, or a
        ``timedelta``. In reschedule mode a poll that fails fails the task, and Airflow's retries
        apply. An error that is not transient, such as a refused token, fails the task at once.
    """

    def __init__(self, *, failure_tolerance: timedelta | float = 600.0, **kwargs: Any) -> None:
        if kwargs.get("mode") == "deferrable":
            raise FsmArgumentError(MODES)
        super().__init__(**kwargs)
        self._has_begun = False
        self._is_first_process = True  # in reschedule mode: the one of the first poll
        self._began = 0.0  # when the wait began, and when it ends: seconds since 1970
        self._deadline = 0.0
        self._poll_ends = 0.0
        self._failing_since: float | None = None
        self._missing: JsonObject = {"text": "no poll has succeeded"}
        self._problem = ""  # what a timeout says of the last poll
        self._hint = ""  # what a timeout says besides
        with bad_arguments_refused():
            parse_seconds("poke_interval", self.poke_interval, 1)
            self.failure_tolerance: float = parse_seconds("failure_tolerance", failure_tolerance)

    def begin(self, context: Context) -> str:
        """Check the arguments, which may have been templates; return what the sensor waits for.

        It is called once in each process of the task: also after each pause, or deferral.
        """
        raise NotImplementedError

    def poll(self) -> PokeReturnValue:
        """Poll once; note in ``_missing`` what is missing, with a ``text``."""
        raise NotImplementedError

    def defer_if_wanted(self, pause: float) -> None:
        """Defer after a poll that does not end the wait; the default stays on the worker.

        :param pause: the seconds until the service may be asked again.
        """

    def execute(self, context: Context) -> Any:
        with permanent_errors_fail_the_task():
            if self.reschedule and "ti" not in context:
                raise FsmInputError("mode: reschedule needs a task; by hand, use poke")
            target = self.begin(context)
        if not self._has_begun:
            self._begin_waiting(target, context)
        try:
            return unwrap(BaseSensorOperator.execute)(self, context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            # Airflow skips for other reasons, too.
            if not str(error).startswith("Sensor has timed out"):
                raise
            parts = [f"waited for {target}", self._missing["text"], self._problem, self._hint]
            text = "; ".join(filter(None, parts))
            push_xcom(context, "missing", {**self._missing, "text": text})
            waited = timedelta(seconds=round(time.time() - self._began))
            raise type(error)(f"Sensor has timed out after {waited}: {text}") from None

    def _begin_waiting(self, target: str, context: Context) -> None:
        """Note, and log, until when it waits; in reschedule mode since its first poll."""
        self._has_begun = True
        first_poll = first_poll_of(context) if self.reschedule else None
        self._is_first_process = first_poll is None
        self._began = time.time() if first_poll is None else first_poll.timestamp()
        self._deadline = self._began + self.timeout
        if self._is_first_process:
            until = datetime.fromtimestamp(self._deadline, UTC).isoformat(timespec="seconds")
            text = "Waiting for %s; polling every %g s until %s"
            self.log.info(text, target, self.poke_interval, until)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        pause = 0.0
        self._poll_ends = time.time() + max(self._until_timeout(), SHORTEST_POLL)
        with permanent_errors_fail_the_task():
            try:
                polled = self.poll()
            except OutOfTimeError:
                self._problem = "the last poll did not end in time"
            except FsmError as error:
                self._problem = f"the last poll failed: {error}"
                pause = self._pause_or_raise(error)
                self.log.warning(
                    "Polling failed, and goes on for up to %g s: %s", self.failure_tolerance, error
                )
            else:
                self._failing_since = None
                self._problem = ""
                if polled.is_done:
                    return polled
                self.log.info("%s", self._missing["text"])
            self.defer_if_wanted(pause)
        time.sleep(max(pause - self.poke_interval, 0.0))
        return False

    def read(self, work: Callable[[], ResultT]) -> ResultT:
        """Return the result of work that reads the service, in another thread.

        :raises OutOfTimeError: if it is not over when the poll has to be.
        """
        result = in_daemon_thread(f"fsm {self.fsm_conn_id}", work)
        wait([result], timeout=max(self._poll_ends - time.time(), 0.0))
        if not result.done():
            raise OutOfTimeError
        return result.result()

    def _pause_or_raise(self, error: FsmError) -> float:
        """Return the seconds until the next poll, or raise an error that is not tolerated.

        A pause ends with the tolerance, and with the timeout.
        """
        now = time.time()
        if self._failing_since is None:
            self._failing_since = now
        ends_at = give_up_at(error, self._failing_since, self.failure_tolerance)
        if self.reschedule or now >= ends_at:
            raise error
        return min(pause_after(error), ends_at - now, self._until_timeout())

    def _until_timeout(self) -> float:
        # Airflow's clock of the timeout began a little later.
        return self._deadline - time.time() + 1

    def _get_next_poke_interval(self, *args: Any, **kwargs: Any) -> float:
        """Return Airflow's interval, or the seconds until the timeout if they are fewer."""
        interval: float = super()._get_next_poke_interval(*args, **kwargs)
        return max(min(interval, self._until_timeout()), 0.0)
