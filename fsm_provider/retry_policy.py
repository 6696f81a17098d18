"""When Airflow retries a task of this package (Airflow 3.3 and newer)."""

from __future__ import annotations

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
    """Retry after the time that the service asks for, and not at all after a permanent error.

    For any other error, the task's ``retry_delay`` applies; the number of retries remains that of
    the task. Opt in with ``retry_policy=FsmRetryPolicy()`` on a task, or in ``default_args``.

    :param max_delay: a longer ``retry_after`` is cut to this.
    """

    def __init__(self, *, max_delay: timedelta = timedelta(hours=6)) -> None:
        self.max_delay = max_delay

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide by the first :class:`FsmError` among the exception and its causes."""
        error: BaseException | None = exception
        while error is not None and not isinstance(error, FsmError):
            error = error.__cause__
        if error is None:
            return RetryDecision.default()
        if error.permanent:
            return RetryDecision.fail(f"{type(error).__name__}: a retry could not help")
        retry_after = error.retry_after if isinstance(error, FsmApiError) else None
        if retry_after is None:
            return RetryDecision.default()
        delay = min(timedelta(seconds=retry_after), self.max_delay)
        return RetryDecision.retry(delay, f"the service asks to wait {retry_after:g} s")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as JSON values."""
        return {"max_delay": self.max_delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Rebuild a policy from :meth:`serialize`."""
        return cls(max_delay=timedelta(seconds=data["max_delay"]))
