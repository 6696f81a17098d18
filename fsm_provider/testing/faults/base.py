"""The protocol of a fault."""

from __future__ import annotations

from typing import Protocol

from fsm_provider.testing.exchange import Exchange


class Fault(Protocol):
    """A fault; a test may define its own.

    For example::

        class Teapot:
            async def play(self, exchange):
                job = await exchange.handle()
                await exchange.respond(faults.Response(418, job.body))
    """

    async def play(self, exchange: Exchange) -> None:
        """Respond in an exchange, or break it.

        The service calls it in its event loop: it must not block.
        """
