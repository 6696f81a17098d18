"""Responses that are late, cut off or never come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsm_provider.testing.exchange import Exchange


@dataclass(frozen=True)
class Reset:
    """The connection is reset (RST) after the request was read, before a byte of the response.

    :param after_handling: whether the request is handled first, e.g. the job stored.
    """

    after_handling: bool = False

    async def play(self, exchange: Exchange) -> None:
        """Handle or not, then reset."""
        if self.after_handling:
            await exchange.handle()
        exchange.reset()


@dataclass(frozen=True)
class Truncated:
    """The request is handled, and its response ends (FIN) in the middle of the body.

    :param at: bytes of the body that are sent; default: half of them; negative: all but so many.
    :param chunked: with chunked encoding instead of ``Content-Length``.
    """

    at: int | None = None
    chunked: bool = False

    async def play(self, exchange: Exchange) -> None:
        """Handle, respond in part and close."""
        correct = await exchange.handle()
        await exchange.respond_in_part(correct, self.at, chunked=self.chunked)
        exchange.close()


@dataclass(frozen=True)
class Stall:
    """Silence: the connection stays open, and nothing more is sent.

    :param seconds: after which the connection is closed; None: when the service stops.
    :param after_handling: whether the request is handled first, e.g. the job stored.
    :param headers_first: whether the headers and a part of the body are sent before the silence.
    :param at: bytes of the body that are sent then; default: half of them.
    """

    seconds: float | None = None
    after_handling: bool = True
    headers_first: bool = False
    at: int | None = None

    def __post_init__(self) -> None:
        if self.headers_first and not self.after_handling:
            raise ValueError(
                "headers_first needs after_handling: there is no response to begin without it"
            )

    async def play(self, exchange: Exchange) -> None:
        """Handle or not, respond in part or not, wait and close."""
        if self.after_handling:
            correct = await exchange.handle()
            if self.headers_first:
                await exchange.respond_in_part(correct, self.at)
        exchange.record(None)
        await exchange.pause(self.seconds)
        exchange.close()


@dataclass(frozen=True)
class Delay:
    """The request is handled at once, and its complete response comes late.

    :param seconds: between the two.
    """

    seconds: float

    async def play(self, exchange: Exchange) -> None:
        """Handle, wait and respond."""
        correct = await exchange.handle()
        await exchange.respond(correct, after=self.seconds)


@dataclass(frozen=True)
class Trickle:
    """The request is handled at once, and the body of its response comes in chunks.

    No single read of the client waits long, but all of them together do.

    :param seconds: from the headers to the end of the body.
    :param chunks: the number of chunks.
    """

    seconds: float
    chunks: int = 20

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise ValueError(f"chunks must be at least 1, not {self.chunks}")

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond in chunks."""
        correct = await exchange.handle()
        chunk_size = max(1, math.ceil(len(correct.body) / self.chunks))
        await exchange.respond_in_part(correct, 0)
        for start in range(0, len(correct.body), chunk_size):
            await exchange.pause(self.seconds / self.chunks)
            await exchange.send_part(correct.body[start : start + chunk_size])
        await exchange.end()


@dataclass(frozen=True)
class MalformedResponse:
    """Bytes that are not HTTP, then the end of the connection.

    :param after_handling: whether the request is handled first, e.g. the job stored.
    """

    data: bytes = b"220 mail.example.test ESMTP\r\n"
    after_handling: bool = True

    async def play(self, exchange: Exchange) -> None:
        """Handle or not, write the bytes and close."""
        if self.after_handling:
            await exchange.handle()
        exchange.write(self.data)
        exchange.close()
