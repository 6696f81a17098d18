"""Airflow's metrics: StatsD, DogStatsD or OpenTelemetry, as ``airflow.cfg`` says."""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from fsm_provider.api.metrics import Metrics

logger: logging.Logger = logging.getLogger(__name__)

_NOT_IN_TAGS = re.compile(r"[^\w./-]", re.ASCII)
"""Characters that one of Airflow's backends refuses in the value of a tag."""


@dataclass(frozen=True)
class AirflowMetrics(Metrics):
    """Passes on what is counted and measured, with tags such as ``connection``."""

    tags: Mapping[str, str]

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        self._emit("incr", name, count, tags)

    def gauge(self, name: str, value: float) -> None:
        self._emit("gauge", name, value, {})

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        self._emit("timing", name, seconds * 1000, tags)

    def _emit(self, kind: str, name: str, value: float, tags: Mapping[str, str]) -> None:
        all_tags = {**self.tags, **tags}
        clean_tags = {tag: _NOT_IN_TAGS.sub("_", text) for tag, text in all_tags.items()}
        try:
            emit = getattr(_stats(), kind)
            emit(f"fsm.{name}", value, tags=clean_tags)
        except Exception as error:  # noqa: BLE001 - what it counts has happened, and must stay known
            logger.debug("The metric '%s' was not sent: %r", name, error)


@cache
def _stats() -> Any:
    with suppress(ImportError):
        import airflow.sdk.serde  # noqa: F401 - it initialises Stats; a triggerer does not
    from airflow.providers.common.compat.sdk import Stats

    return Stats
