"""An asset of completed forms as people see it: what is stored of it, and what is not well."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
from fsm_provider.polling.polls import Time, time_of
from fsm_provider.polling.watcher import SILENCE, prefix_for

LATE_BY = 30.0  # seconds beyond three intervals: the time of a poll is stored every 15 s


@dataclass(frozen=True)
class Problem:
    """Why forms may not start each DAG that they should, and at least since when."""

    text: str
    since: Time | None = None

    def __str__(self) -> str:
        if self.since is None:
            return self.text
        return f"{self.text}, at least since {time_of(self.since):%F %T} UTC"


class WatcherStatus(BaseModel):
    """What a watcher has stored.

    How it fares is some 20 s old while a triggerer runs it. Its watermark, floor and forms by day
    are saved with each event, else about once an hour. Times are in seconds since 1970.

    :param poll_interval: seconds; 0: its configuration is not stored yet.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, allow_inf_nan=False)

    poll_interval: float = 0.0
    seen_at: Time | None = None
    polled_at: Time | None = None
    failing_since: Time | None = None
    error: str = ""
    backlog: NonNegativeInt | None = None
    watermark: Time | None = None
    floor: Time | None = None
    days: Mapping[str, NonNegativeInt] = {}


@dataclass(kw_only=True)
class AssetStatus:
    """An asset of completed forms, and what its watcher has stored.

    :param dag_ids: the DAGs that it starts.
    :param paused: those of them that are paused.
    :param lost: those of them that Airflow does not find in a file.
    :param is_active: Airflow has activated it: no other asset has its name, and a DAG defines it.
    :param is_disputed: those DAGs define it differently: the watcher heeds what was announced last.
    :param read_error: why what is stored is not known: there is no database yet, or something
        fails.
    :param is_claimed: a triggerer has watched it at some time, maybe long ago.
    """

    asset_id: int
    name: str
    fsm_conn_id: str
    dag_ids: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    is_active: bool = True
    is_disputed: bool = False
    stored: WatcherStatus = field(default_factory=WatcherStatus)
    read_error: Exception | None = None
    is_claimed: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether Airflow has dropped it or will, with all that is stored with it."""
        return bool(self.lost) and self.lost == self.dag_ids

    def read_prefix(self) -> str:
        """Return how the keys of the service begin that the connection leads to now.

        :raises AirflowNotFoundException: if nobody has defined the connection.
        """
        settings = settings_from(read_connection_outside_of_tasks(self.fsm_conn_id))
        return prefix_for(settings.service)

    def problems(self) -> list[Problem]:
        """Return what is not well, but for a triggerer or scheduler that does not run at all."""
        return [*self._problems_of_dags(), *self._problems_of_watcher()]

    def _problems_of_dags(self) -> Iterator[Problem]:
        if self.is_disputed:
            yield Problem(
                "Its DAGs define it differently, and only the definition that Airflow read last is "
                "watched: import it from one module, or give one another name"
            )
        number = len(self.dag_ids)
        if self.lost:
            yield Problem(
                f"No form starts {len(self.lost)} of its {number} DAGs, which Airflow does not "
                "find in a file: its list of import errors may say why. If one was removed, delete "
                "it in Airflow, too"
            )
        if not self.is_active:
            yield Problem(
                "Nothing watches it, as Airflow has not activated it: another asset has its name, "
                "or no DAG defines it"
            )
        if self.paused == self.dag_ids:
            all_paused = "all that it starts are paused" if number else "it starts none"
            yield Problem(f"No form starts a DAG: {all_paused}")

    def _problems_of_watcher(self) -> Iterator[Problem]:
        if self.read_error:
            place = getattr(self.read_error, "place", None)
            where = f": no database was found at {place}" if place else ""
            yield Problem(f"What its watcher has stored cannot be read{where}")
        elif not self.is_claimed:
            yield Problem(
                "No triggerer watches it, so no form starts a DAG: none is running, the DAG's file "
                "was not parsed without an error, or Airflow has deleted the asset's configuration "
                "since: then restart the triggerer"
            )
        else:
            yield from self._problems_of_polls()

    def _problems_of_polls(self) -> Iterator[Problem]:
        now = time.time()
        stored = self.stored
        # A time to come is one that a clock was wrong at, or that a task has stored.
        if stored.seen_at is not None and abs(now - stored.seen_at) > SILENCE:
            yield Problem(
                "Nothing watches it, so no form starts a DAG: its triggerer is gone, or its DAGs "
                "are paused",
                stored.seen_at,
            )
        if (stored.watermark or 0.0) > now + SILENCE:
            yield Problem("Its watermark is a time to come: set it back")
        if stored.error:
            yield Problem(f"Its polls fail: {stored.error}", stored.failing_since)
        if abs(now - (stored.polled_at or 0.0)) > 3 * stored.poll_interval + LATE_BY:
            none = "none was complete"
            if stored.polled_at is None:
                none = "none was complete since a triggerer began to watch it"
            yield Problem(
                f"One poll is due every {stored.poll_interval:g} s, and {none}", stored.polled_at
            )
