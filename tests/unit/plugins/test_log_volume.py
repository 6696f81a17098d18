"""How much of the API server's log outsiders without a token can fill."""

import io
import logging
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsm_provider.plugins.webhooks.log_limit import LogLimit
from tests.unit.plugins.conftest import TOKEN, raw

POSTS = 1000
REFUSED = 400
MAX_BYTES = 15_000
"""Limit of the log of each test, which may span two minutes: 120 refusals, or two tracebacks."""


@pytest.fixture
def log():
    """The log of all loggers from INFO on, as text, without the lines of the client."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(lambda record: not record.name.startswith("urllib3"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.setLevel(level)
    root.removeHandler(handler)


@contextmanager
def database_away():
    """Replace the file of the metadata database by a folder."""
    from airflow.settings import engine

    engine.dispose()
    file = Path(engine.url.database)
    file.rename(file.with_suffix(".away"))
    file.mkdir()
    try:
        yield
    finally:
        file.rmdir()
        file.with_suffix(".away").rename(file)


def lines(log):
    return log.getvalue().splitlines()


def test_the_log_stays_small_while_the_database_is_away(receiver, log):
    receiver.post(b"the settings are read")
    receiver.clock.now += 100
    before = len(log.getvalue())

    with database_away():
        for number in range(POSTS):
            url = receiver.url(token=f"guess-{number}")
            assert receiver.post(b"x", url=url).status_code == 503

    written = log.getvalue()[before:]
    print(f"{len(written)} bytes of log for {POSTS} deliveries")
    assert len(written) < MAX_BYTES
    assert 1 <= written.count("Traceback") + written.count("failed with OperationalError") <= 2
    assert receiver.post(b"it is back").status_code == 200


@pytest.mark.parametrize(
    "kind",
    ["token", "route", "method", "line break", "control", "long path", "oversized", "unconfigured"],
)
def test_the_log_of_refusals_stays_small(receiver, log, kind):
    if kind == "unconfigured":
        receiver.set("fsm_webhooks", "{")
        receiver.clock.now += 100
    before = len(log.getvalue())

    for number in range(REFUSED):
        receiver.clock.now += 0.1
        match kind:
            case "token" | "unconfigured":
                receiver.post(b"x", url=receiver.url(token=f"guess-{number}"))
            case "route":
                receiver.post(b"x", url=receiver.url(route=f"guess-{number}/jobs"))
            case "method":
                receiver.session.get(receiver.url(), timeout=10)
            case "line break":
                receiver.post(b"x", url=receiver.url(route="a%0d%0aFAKE LINE/jobs"))
            case "control":
                receiver.post(b"x", url=receiver.url(route="a%1b[31m%E2%80%A8FAKE%85%0bLINE/jobs"))
            case "long path":
                receiver.post(b"x", url=receiver.url(token="x" * 5000))
            case "oversized":
                raw(receiver, b"Content-Length: 99999999\r\n\r\n")

    written = log.getvalue()[before:]
    print(f"{kind}: {len(written)} bytes of log for {REFUSED} requests")
    assert len(written) < MAX_BYTES
    assert written.count("refused: ") <= 120
    assert not re.search(r"FAKE|guess|xxx|\x1b|\u2028|" + TOKEN, written)


def test_one_message_of_each_kind_is_logged_per_minute_and_the_others_are_counted(caplog):
    now = [0.0]
    limit = LogLimit(logging.getLogger("test"), lambda: now[0])

    for second in range(150):
        now[0] = second
        limit.log(logging.ERROR, "it failed", lambda: "\n  here")
    limit.log(logging.ERROR, "it failed otherwise")

    assert [record.getMessage() for record in caplog.records] == [
        "it failed\n  here",
        "it failed (59 more since the last such line)\n  here",
        "it failed (59 more since the last such line)\n  here",
        "it failed otherwise",
    ]


def test_what_is_past_a_limit_is_counted_and_the_next_minute_says_how_many(caplog):
    now = [0.0]
    limit = LogLimit(logging.getLogger("test"), lambda: now[0])
    exceeding = []

    for second in range(65):
        now[0] = second
        exceeding.append(limit.exceeds(3, "Refused deliveries for fsm_default/jobs"))
        assert limit.exceeds(0, "Refused deliveries for -/-")

    assert exceeding == [False] * 3 + [True] * 57 + [False] * 3 + [True] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "Refused deliveries for fsm_default/jobs: 60 within a minute",
        "Refused deliveries for -/-: 60 within a minute",
    ]
