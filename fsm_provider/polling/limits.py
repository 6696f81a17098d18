"""How long polls pause and fail, the same in all modes of a sensor; and work that may hang."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from fsm_provider.api.errors import FsmError
from fsm_provider.api.validation import ResultT

MAX_PAUSE = 900.0
"""Seconds for which polls pause at most, however long the service asks to wait."""


def pause_after(error: FsmError) -> float:
    """Return the seconds for which polls pause after an error, because the service asks to wait."""
    retry_after = getattr(error, "retry_after", None) or 0.0
    return min(retry_after, MAX_PAUSE)


def give_up_at(error: FsmError, failing_since: float, tolerance: float) -> float:
    """Return when a wait whose polls fail ends with their error.

    :param failing_since: of any clock, which is that of the returned time, too.
    :param tolerance: ``failure_tolerance`` of the sensor, in seconds.
    """
    if error.permanent:
        return failing_since
    return failing_since + tolerance


def in_daemon_thread(name: str, work: Callable[[], ResultT]) -> Future[ResultT]:
    """Have a daemon thread do some work, for which nobody has to wait.

    A service that hangs fills no pool of Airflow's, and delays no exit.
    """
    result = Future[ResultT]()
    result.set_running_or_notify_cancel()  # if who awaits it is cancelled, the thread goes on

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            result.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return result
