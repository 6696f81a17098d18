"""What the client promises for each fault, request and phase: the table that the test runs.

``python -m tests.unit.api.fault_matrix`` prints it as the table in docs/measured.md.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Fault

RETRIES = 2
Backoff = Literal["backoff", "slow backoff"]
BOUNDS = {"backoff": 0.5, "slow backoff": 10.0}
"""Seconds up to which the first delay is drawn; the bound doubles with each repeat."""
Phase = Literal["first call", "second page", "every call"]
CELLS: tuple[tuple[str, Phase], ...] = (
    ("GET", "first call"),
    ("GET", "second page"),
    ("GET", "every call"),
    ("POST", "first call"),
    ("POST", "every call"),
)


@dataclass(frozen=True)
class Outcome:
    """What comes of one call of the client.

    :param raises: name of the error, None where the call succeeds.
    :param repeats: how often the failing request is sent again.
    :param waits: seconds before each repeat; a backoff is a draw below a bound that doubles.
    :param stored: jobs that the service holds afterwards.
    """

    raises: str | None = None
    repeats: int = 0
    waits: tuple[float | Backoff, ...] = ()
    stored: int = 0


@dataclass(frozen=True)
class PollFailure:
    """A fault of all connections instead of one call: no request is read while it lasts."""

    begin: Callable[[FakeFieldService], AbstractContextManager[object]]


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"


@dataclass(frozen=True)
class Handled:
    """The request is handled, e.g. the job stored, and a fault's response comes all the same."""

    fault: Fault

    async def play(self, exchange: faults.Exchange) -> None:
        await exchange.handle()
        await self.fault.play(exchange)


class Early:
    """The correct response behind an interim one."""

    async def play(self, exchange: faults.Exchange) -> None:
        correct = await exchange.handle()
        head = (
            f"HTTP/1.1 {correct.status} Right\r\n"
            f"Content-Length: {len(correct.body)}\r\n"
            "Connection: close\r\n"
            "\r\n"
        )
        exchange.write(EARLY + head.encode() + correct.body)
        exchange.close()


@dataclass(frozen=True)
class Row:
    """One fault, and what comes of it in each cell."""

    fault: str
    play: Fault | PollFailure
    read_once: Outcome
    read_always: Outcome
    write_once: Outcome
    write_always: Outcome

    def outcome(self, method: str, phase: Phase) -> Outcome:
        """Return what is expected in a cell."""
        is_always = phase == "every call"
        if method == "GET" and is_always:
            return self.read_always
        if method == "GET":
            return self.read_once
        if is_always:
            return self.write_always
        return self.write_once


NO_RESPONSE = "FsmResponseError"
READ_AGAIN = Outcome(repeats=1, waits=("backoff",))


def gives_up(error: str, wait: float | Backoff = "backoff") -> Outcome:
    return Outcome(error, RETRIES, (wait,) * RETRIES)


def uncertain(stored: int) -> Outcome:
    return Outcome("FsmUncertainWriteError", stored=stored)


def in_the_dark(
    name: str, fault: Fault | PollFailure, read_error: str = NO_RESPONSE, *, stored: int
) -> Row:
    """A fault after which a write may have happened."""
    return Row(
        name,
        fault,
        read_once=READ_AGAIN,
        read_always=gives_up(read_error),
        write_once=uncertain(stored),
        write_always=uncertain(stored),
    )


def refused(status: int, error: str) -> Row:
    """A status that says that nothing happened, and that asking again is of no use."""
    return always_the_same(str(status), faults.Status(status), Outcome(error))


def always_the_same(name: str, fault: Fault, outcome: Outcome) -> Row:
    return Row(
        name,
        fault,
        read_once=outcome,
        read_always=outcome,
        write_once=outcome,
        write_always=outcome,
    )


def no_refusal(name: str, fault: Fault, read_error: str, *, stored: int = 0) -> Row:
    """A response that ends a read, and that a write may get that was carried out."""
    return Row(
        name,
        fault,
        read_once=Outcome(read_error),
        read_always=Outcome(read_error),
        write_once=uncertain(stored),
        write_always=uncertain(stored),
    )


def succeeds(name: str, fault: Fault) -> Row:
    return Row(
        name,
        fault,
        read_once=Outcome(),
        read_always=Outcome(),
        write_once=Outcome(stored=1),
        write_always=Outcome(stored=1),
    )


LIMITED = Outcome("FsmRateLimitedError")


def limited(name: str, wait: float | Backoff, **status) -> Row:
    return Row(
        name,
        faults.Status(429, **status),
        read_once=Outcome(repeats=1, waits=(wait,)),
        read_always=gives_up("FsmRateLimitedError", wait),
        write_once=LIMITED,
        write_always=LIMITED,
    )


UNREACHED = Outcome("FsmConnectionError")
OOPS = faults.Status(500, "<h1>Oops</h1>", content_type="text/html")
NO_GZIP = faults.Body("{}", headers={"content-encoding": "gzip"})
SEE_OTHER = Handled(faults.Redirect(status=303))
ELSEWHERE = faults.Redirect("http://other.invalid/forms", status=307)
MATRIX = [
    Row(
        "connection refused",
        PollFailure(lambda service: service.refuse_connections()),
        read_once=READ_AGAIN,
        read_always=gives_up("FsmConnectionError"),
        write_once=UNREACHED,
        write_always=UNREACHED,
    ),
    in_the_dark(
        "reset before the request is read",
        PollFailure(lambda service: service.reset_connections()),
        stored=0,
    ),
    in_the_dark("reset before handling", faults.Reset(), stored=0),
    in_the_dark("reset after handling", faults.Reset(after_handling=True), stored=1),
    in_the_dark("silence, not handled", faults.Stall(after_handling=False), stored=0),
    in_the_dark("silence after handling", faults.Stall(), stored=1),
    in_the_dark("body that stalls", faults.Stall(headers_first=True), stored=1),
    in_the_dark("body cut off", faults.Truncated(), stored=1),
    in_the_dark("chunked body cut off", faults.Truncated(5, chunked=True), stored=1),
    in_the_dark("no HTTP", faults.MalformedResponse(after_handling=False), stored=0),
    in_the_dark("500", OOPS, "FsmServerError", stored=0),
    in_the_dark("502", faults.Status(502, "bad gateway"), "FsmServerError", stored=0),
    in_the_dark("503", faults.Status(503, {"error": "later"}), "FsmServerError", stored=0),
    in_the_dark("504 without a body", faults.Status(504), "FsmServerError", stored=0),
    in_the_dark("success, broken JSON", faults.Body('{"id": 1'), stored=1),
    in_the_dark("success, HTML", faults.Body("<html>", "text/html"), stored=1),
    in_the_dark("success, empty", faults.Body(""), stored=1),
    in_the_dark("success, another shape", faults.Body([1]), stored=1),
    in_the_dark("success, no id", faults.Body({"data": [{"x": 1}]}), stored=1),
    in_the_dark("said to be gzip, is not", NO_GZIP, stored=1),
    Row(
        "503 with Retry-After 7",
        faults.Status(503, retry_after=7),
        read_once=Outcome(repeats=1, waits=(7,)),
        read_always=gives_up("FsmServerError", 7),
        write_once=uncertain(0),
        write_always=uncertain(0),
    ),
    limited("429", "slow backoff"),
    limited("429, Retry-After 17", 17, body="slow down", retry_after=17),
    limited("429, Retry-After negative", "slow backoff", retry_after="-5"),
    limited("429, Retry-After unreadable", "slow backoff", retry_after="soon"),
    always_the_same("429, Retry-After a day", faults.Status(429, retry_after=86_400), LIMITED),
    refused(400, "FsmBadRequestError"),
    refused(401, "FsmUnauthorisedError"),
    refused(403, "FsmForbiddenError"),
    refused(404, "FsmNotFoundError"),
    refused(405, "FsmMethodError"),
    refused(409, "FsmConflictError"),
    refused(422, "FsmUnprocessableEntityError"),
    no_refusal("redirect to itself", faults.Redirect(), "FsmRedirectError"),
    no_refusal("redirect to another host", ELSEWHERE, "FsmRedirectError"),
    no_refusal("303 after handling", SEE_OTHER, "FsmRedirectError", stored=1),
    no_refusal("408 after handling", Handled(faults.Status(408)), "FsmApiError", stored=1),
    no_refusal("499 after handling", Handled(faults.Status(499)), "FsmApiError", stored=1),
    in_the_dark("103, then the end", faults.MalformedResponse(EARLY), stored=1),
    succeeds("103, then the response", Early()),
    succeeds("late, but complete", faults.Delay(0.1)),
    succeeds("gzip", faults.Gzip()),
    succeeds("wrong content type", faults.WrongContentType()),
]


def as_text(outcome: Outcome) -> str:
    """Return the text of a cell."""
    result = "succeeds"
    if outcome.raises:
        result = f"`{outcome.raises}`"
    if not outcome.repeats:
        return result

    wait = outcome.waits[0]
    seconds = wait if isinstance(wait, str) else f"{wait:g} s"
    plural = "s" if outcome.repeats > 1 else ""
    return f"{result} after {outcome.repeats} repeat{plural} ({seconds})"


def as_table() -> str:
    """Return the matrix in Markdown: the faults of which the same comes, in one line."""
    faults_by_cells: dict[tuple[str, ...], list[str]] = {}
    for row in MATRIX:
        cells = (as_text(row.read_once), as_text(row.read_always), as_text(row.write_once))
        faults_by_cells.setdefault(cells, []).append(row.fault)

    lines = ["| fault | GET, once | GET, each time | POST |", "|---|---|---|---|"]
    for cells, names in faults_by_cells.items():
        lines.append(f"| {'; '.join(names)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_table())
