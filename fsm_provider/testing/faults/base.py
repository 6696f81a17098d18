"""What a fault is."""

from __future__ import annotations

from typing import Protocol

from fsm_provider.testing.exchange import Exchange


class Fault(Protocol):
    """Anything that plays a request; also one's own.

    For example::

        class Teapot:
            async def play(self, exchange):
                job = await exchange.handle()
                await exchange.answer(faults.Answer(418, job.body))
    """

    async def play(self, exchange: Exchange) -> None:
        """Answer or break an exchange. Runs in the event loop of the service: it must not block."""
