"""Leave out of urllib3's log what may contain secrets: URLs, and what the service has sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_confidential = ContextVar[bool | None]("fsm_confidential_request", default=None)
"""Whether the URL of the request that is sent is confidential; None: none is."""


def _quote_nothing(record: logging.LogRecord) -> bool:
    """Leave URL and headers out of the warning that a response's head is malformed."""
    if _confidential.get() is not None:
        record.msg, record.args, record.exc_info = "The head of a response is malformed", (), None
    return True


logging.getLogger("urllib3.connectionpool").addFilter(lambda _: not _confidential.get())
logging.getLogger("urllib3.connection").addFilter(_quote_nothing)


@contextmanager
def filter_log(*, confidential: bool) -> Iterator[None]:
    """Filter urllib3's log of a request inside the block, with its URL if ``confidential``."""
    token = _confidential.set(confidential)
    try:
        yield
    finally:
        _confidential.reset(token)
