"""Suppress urllib3's DEBUG log of URLs that contain secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_confidential = ContextVar("fsm_confidential_request", default=False)


class _SuppressConfidential(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _confidential.get()


logging.getLogger("urllib3.connectionpool").addFilter(_SuppressConfidential())


@contextmanager
def suppress_url_logging(confidential: bool) -> Iterator[None]:
    """Suppress the log of URLs inside the block if ``confidential``."""
    token = _confidential.set(confidential)
    try:
        yield
    finally:
        _confidential.reset(token)
