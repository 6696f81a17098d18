"""Warnings that are logged once per process."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

_logged: set[Hashable] = set()


def warn_once(
    logger: logging.Logger, key: Hashable, message: str, *args: Any, level: int = logging.WARNING
) -> None:
    """Log a warning, or at another level, once per process and ``key``."""
    if key not in _logged:
        _logged.add(key)
        logger.log(level, f"{message}; this is logged once", *args)
