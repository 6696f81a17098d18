"""urllib3 logs at DEBUG the address of each request, with its query: not of those that hold a secret."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_confidential = ContextVar("fsm_confidential_request", default=False)


class _NothingConfidential(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _confidential.get()


# A module is imported once, and urllib3 has one logger for its connections.
logging.getLogger("urllib3.connectionpool").addFilter(_NothingConfidential())


@contextmanager
def addresses_unlogged(confidential: bool) -> Iterator[None]:
    """Have no address logged that is sent to from here, where it holds something confidential."""
    token = _confidential.set(confidential)
    try:
        yield
    finally:
        _confidential.reset(token)
