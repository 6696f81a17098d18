"""Suppress urllib3's DEBUG log of URLs that contain secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_confidential = ContextVar("fsm_confidential_request", default=False)


logging.getLogger("urllib3.connectionpool").addFilter(lambda _: not _confidential.get())


@contextmanager
def suppress_url_logging(confidential: bool) -> Iterator[None]:
    """Suppress the log of URLs inside the block if ``confidential``."""
    token = _confidential.set(confidential)
    try:
        yield
    finally:
        _confidential.reset(token)
