"""Polls that no unexpected error ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fsm_provider.api.errors import FsmConnectionError, FsmError

logger: logging.Logger = logging.getLogger(__name__)


async def keep_polling(
    poll: Callable[[float], Awaitable[None]],
    *,
    fsm_conn_id: str,
    interval: float,
    first_after: float,
    fail: Callable[[FsmError], Awaitable[None]],
) -> None:
    """Poll; after an unexpected exception log it, and begin again after an interval.

    :param poll: polls, the first time after so many seconds.
    :param fsm_conn_id: the Airflow connection.
    :param interval: seconds between two polls.
    :param first_after: seconds until the first poll.
    :param fail: notifies those for whom it polls.
    """
    while True:
        try:
            return await poll(first_after)
        except Exception as error:
            logger.exception("The polls for forms of '%s' start again", fsm_conn_id)
            await fail(FsmConnectionError(f"the polls for forms ended unexpectedly: {type(error).__name__}"))
        first_after = interval
