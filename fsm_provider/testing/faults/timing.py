"""A function called while a client waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from fsm_provider.testing.exchange import Exchange
from fsm_provider.testing.faults.base import Fault
from fsm_provider.testing.faults.responses import CorrectResponse


@dataclass(frozen=True)
class Before:
    """A function is called after the request was read and before it is handled.

    For example ``Before(lambda: service.update_form(5001))`` at the second call of a listing, or
    ``Before(event.wait)`` to hold a request until the test sets an event.

    :param function: runs in a thread of its own, so it may block; the service does not wait for it
        when it stops.
    :param then: the fault played afterwards; default: the correct response.
    """

    function: Callable[[], object]
    then: Fault = field(default_factory=CorrectResponse)

    async def play(self, exchange: Exchange) -> None:
        """Call the function, then handle and respond."""
        returned = asyncio.wrap_future(_in_thread(self.function))
        stopped = asyncio.ensure_future(exchange.pause())
        await asyncio.wait((returned, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not returned.done():
            returned.cancel()
            exchange.close()
            return
        returned.result()
        await self.then.play(exchange)


def _in_thread(function: Callable[[], object]) -> Future[object]:
    outcome: Future[object] = Future()
    # Not cancellable from now on: setting the result of a cancelled future is an error.
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised by play()
            outcome.set_exception(error)

    threading.Thread(target=work, name="fsm-fake-before", daemon=True).start()
    return outcome
