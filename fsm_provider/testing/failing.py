"""Methods with which a test makes the fake fail."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager

from fsm_provider.testing.faults import Fault, Status
from fsm_provider.testing.script import ROUTES, Script, ScriptedFault, may_match
from fsm_provider.testing.server import BackgroundServer


class FakeFaults:
    """Faults of single calls, and failures of all connections."""

    _server: BackgroundServer | None

    def __init__(self, changed: threading.Condition) -> None:
        self._script = Script(changed)

    def fail(
        self,
        method: str,
        path_pattern: str,
        fault: Fault,
        *,
        call: int | None = None,
        calls: Container[int] | None = None,
        every: bool = False,
    ) -> ScriptedFault:
        """Play a fault instead of the correct response, by default at the first matching call.

        Each scripted fault counts its own calls, from 1, beginning now. If several faults match a
        call, the one scripted last is played::

            service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
            service.fail("GET", "/forms", faults.Status(503), calls=(1, 2))
            service.fail("*", "*", faults.Status(429, retry_after=1), every=True)

        A path that the fake does not have is answered by a ``faults.Status`` below 300; then other
        faults of that path may be scripted, too.

        :param method: e.g. ``GET``; ``*`` is any.
        :param path_pattern: relative to the base URL; ``*`` matches anything.
        :param fault: one of :mod:`fsm_provider.testing.faults`, or your own.
        :param call: the one call that fails.
        :param calls: the calls that fail, e.g. ``(1, 3)`` or ``range(2, 5)``.
        :param every: whether every call fails.
        :return: the scripted fault, whose ``hits`` says how often it was played.
        :raises ValueError: if nothing answers a request that matches.
        """
        if isinstance(fault, type):
            raise TypeError(f"{fault.__name__} is the class of a fault; pass an instance")
        choices = [call is not None, calls is not None, every]
        if sum(choices) > 1:
            raise ValueError("Only one of call, calls and every can be given")
        if call is not None and call < 1:
            raise ValueError(f"call is counted from 1, not {call}")

        failing_calls = calls  # None: every call
        if call is not None:
            failing_calls = (call,)
        elif calls is None and not every:
            failing_calls = (1,)
        is_answer = isinstance(fault, Status) and fault.status < 300
        if not is_answer:
            self._check_that_it_may_match(method, path_pattern)
        scripted = ScriptedFault(method, path_pattern, fault, failing_calls)
        self._script.add(scripted)
        return scripted

    def _check_that_it_may_match(self, method: str, path_pattern: str) -> None:
        known = [*ROUTES, *(scripted.patterns for scripted in self._script.faults)]
        for route in known:
            if may_match(*route, method_pattern=method, path_pattern=path_pattern):
                return
        listed = ", ".join(f"{name} {path}" for name, path in known)
        raise ValueError(
            f"{method} {path_pattern}: the fake answers no such request, only {listed}. Answer it "
            f"first: fail({method!r}, {path_pattern!r}, faults.Status(200, body=...), every=True)"
        )

    @property
    def unused_faults(self) -> list[ScriptedFault]:
        """The scripted faults that no call has met so far."""
        return [scripted for scripted in self._script.faults if not scripted.hits]

    def clear_faults(self) -> None:
        """Remove all scripted faults; one that is being played continues."""
        self._script.clear()

    @contextmanager
    def refuse_connections(self) -> Iterator[None]:
        """Refuse connections (ECONNREFUSED) within a ``with`` block; the records stay.

        At the beginning, open connections are closed, those with a request under way after its
        response. At the end the service accepts connections on the same port again.
        """
        with self._running().refusing():
            yield

    @contextmanager
    def reset_connections(
        self, count: int | None = None, *, at_accept: bool = False
    ) -> Iterator[list[tuple[str, int]]]:
        """Reset connections within a ``with`` block, before a request is read.

        A connection, new or kept alive, is reset (RST) at the first bytes of a request. These
        requests are not recorded, as they were not read::

            with service.reset_connections(1) as was_reset:
                hook.list_forms()
            assert len(was_reset) == 1

        :param count: how many; None: all.
        :param at_accept: whether a new connection is reset as soon as it is accepted. A client may
            then see the reset when it connects, sends or reads.
        :return: a list that receives the client's host and port of each connection.
        """
        with self._running().resetting(count, at_accept=at_accept) as was_reset:
            yield was_reset

    def _running(self) -> BackgroundServer:
        if self._server is None:
            raise RuntimeError("The service is not running: start() it first")
        return self._server
