"""A request to the service, and the limits on its time. Nothing is sent here."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from json import dumps
from typing import Any, Self
from urllib.parse import urlencode

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import JsonObject, parse_headers, parse_params

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""They change nothing in the service: such a request may be repeated."""

MakeRecord = Callable[[Any, tzinfo], Any]
"""Makes a record of a response's JSON values; the zone is that of times without one."""


def clocks() -> tuple[float, float]:
    """Return two clocks in seconds; both go on while the machine sleeps, the first may be set."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time(), time.clock_gettime(boottime)


@dataclass(eq=False)
class TimeLimit:
    """A limit on the time that some requests take together, or a single one.

    ``start`` is called before each; the time begins with the first.

    :param begin_within: seconds after ``since``, by :func:`clocks`, in which a request may begin.
    """

    seconds: float
    begin_within: float = float("inf")
    since: tuple[float, float] = field(default_factory=clocks)
    _end: float | None = None

    def start(self) -> None:
        if self._end is None:
            self._end = time.monotonic() + self.seconds

    def left(self) -> float:
        if self._end is None:
            return self.seconds
        return self._end - time.monotonic()

    def left_or_raise(self) -> float:
        """Return the seconds that are left; raise a TimeoutError if there are none."""
        seconds_left = self.left()
        if seconds_left <= 0:
            raise TimeoutError(f"it took more than {self.seconds:g} s")
        return seconds_left

    def is_too_late(self) -> bool:
        """Return whether no request may begin any more, by the clock that has gone further."""
        wall_then, boot_then = self.since
        wall_now, boot_now = clocks()
        passed = max(wall_now - wall_then, boot_now - boot_then)
        return passed > self.begin_within


@dataclass(frozen=True, eq=False)
class ApiRequest:
    """One request as it is sent: checked, its query and body written once.

    The client adds the base URL, the token, the headers of every request, and ``X-API-VERSION``.

    :param query: as in the URL, without ``?``.
    :param headers: those that were asked for.
    :param subject: what it writes, by the service's names, for errors.
    :param confidential: texts that are in no error or log, even if the service repeats them.
    :param is_versioned: the connection's API version is sent with it.
    :param make_record: of the response's JSON values; None: they are returned as they are.
    """

    method: str
    path: str
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    subject: JsonObject = field(default_factory=dict)
    confidential: tuple[str, ...] = field(default=(), repr=False)
    is_versioned: bool = False
    make_record: MakeRecord | None = None

    @classmethod
    def build(
        cls,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Self:
        """Write the parts of a request; an FsmInputError names one that cannot be written.

        :param more: further fields of the class.
        """
        checked = parse_headers("headers", headers)
        query = write_query(params)
        try:
            body = write_json(json)
        except (TypeError, ValueError, RecursionError) as error:
            raise FsmInputError(f"json: {error}") from None
        return cls(method, path, query, checked, body, **more)

    @property
    def content(self) -> list[Any]:
        """All that the service gets, as JSON values: equal for requests that ask the same.

        The order of parameters with different names says nothing; nor does that of fields.
        """
        query = sorted(self.query.split("&"), key=lambda pair: pair.partition("=")[0])
        body = None if self.body is None else self.body.decode()
        return [self.method, self.path, query, body, dict(self.headers)]


def write_query(params: Mapping[str, Any] | None) -> str:
    """Write query parameters in their order; those that are None are left out."""
    checked = parse_params("params", params)
    pairs = [(name, value) for name, value in checked.items() if value is not None]
    try:
        return urlencode(pairs, doseq=True)
    except (TypeError, ValueError) as error:
        raise FsmInputError(
            f"params: cannot be written into a URL ({type(error).__name__})"
        ) from None


def write_json(value: Any) -> bytes | None:
    """Write a body, its fields in the order of their names, so that equal ones are equal bytes.

    :raises TypeError, ValueError, RecursionError: if it is no JSON, or has half a character.
    """
    if value is None:
        return None
    body = dumps(value, allow_nan=False, sort_keys=True).encode()
    if b"\\ud" in body:  # half a character cannot be encoded
        dumps(value, ensure_ascii=False).encode()
    return body
