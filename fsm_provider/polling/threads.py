"""Threads for the blocking calls of triggers.

Airflow's own look-ups run in the event loop's default executor, which a service that hangs must not fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

ResultT = TypeVar("ResultT")

MAX_THREADS = 8
"""At once, for one connection: a service that hangs delays no other connection."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


async def run_in_thread(fsm_conn_id: str, function: Callable[..., ResultT], *args: Any) -> ResultT:
    """Call a blocking function for a connection in a daemon thread.

    Cancelled, it ends at once. The thread cannot be stopped, and keeps its slot until the function returns.

    :raises Exception: whatever the function raises.
    """
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, {}).setdefault(fsm_conn_id, asyncio.Semaphore(MAX_THREADS))
    context, outcome = copy_context(), Future[ResultT]()

    def release(_: Future[ResultT]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(slots.release)

    def run() -> None:
        try:
            outcome.set_result(context.run(function, *args))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome.set_exception(error)

    await slots.acquire()
    outcome.set_running_or_notify_cancel()
    outcome.add_done_callback(release)
    try:
        Thread(target=run, name=f"fsm {fsm_conn_id}", daemon=True).start()
    except RuntimeError as error:  # the system has no more
        outcome.set_exception(error)
    return await asyncio.wrap_future(outcome)
