"""When Airflow is to retry a task of this package (Airflow 3.3 and newer)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

try:
    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
except ImportError:
    raise AirflowOptionalProviderFeatureException(
        "FsmRetryPolicy needs Airflow 3.3 or newer: leave it out, and set retry_delay on the task"
    ) from None

from fsm_provider.api.errors import FsmApiError, FsmError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class FsmRetryPolicy(RetryPolicy):
    """Retry when the service asks to, and not at all where that could not help.

    What asked to wait (``retry_after`` of the error, section 7) is retried after that time; what cannot
    get better by itself fails; anything else is left to the task's ``retry_delay``. Opt in with
    ``retry_policy=FsmRetryPolicy()`` on a task, or in ``default_args``. The number of retries stays the
    task's own.

    :param longest: a longer time that the service asks for is cut to this.
    """

    def __init__(self, *, longest: timedelta = timedelta(hours=6)) -> None:
        if longest <= timedelta():
            raise ValueError(f"longest: should be more than nothing, not {longest}")
        self.longest = longest

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide by the error of ours that is the exception, or its cause."""
        error = next((cause for cause in _causes(exception) if isinstance(cause, FsmError)), None)
        if error is None:
            return RetryDecision.default()
        if error.permanent:
            return RetryDecision.fail(f"{type(error).__name__}: another try could not help")
        if not isinstance(error, FsmApiError) or error.retry_after is None:
            return RetryDecision.default()
        delay = min(timedelta(seconds=error.retry_after), self.longest)
        return RetryDecision.retry(delay, f"the service asks to wait {error.retry_after:g} s")

    def serialize(self) -> dict[str, Any]:
        """Give the arguments as JSON values."""
        return {"longest": self.longest.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Undo :meth:`serialize`."""
        return cls(longest=timedelta(seconds=data["longest"]))


def _causes(exception: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = exception
    while current is not None:
        yield current
        current = current.__cause__
