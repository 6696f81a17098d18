"""An asset of completed forms as people see it: what is stored of it, and what is not well."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
from fsm_provider.polling.polls import Time, time_of
from fsm_provider.polling.watcher import SILENCE, prefix_for

POLL_SLACK = 30.0  # seconds beyond three intervals: the time of a poll is stored every 15 s


@dataclass(frozen=True)
class Problem:
    """What may keep forms from starting a DAG, and since when at the latest."""

    text: str
    since: Time | None = None

    def __str__(self) -> str:
        if self.since is None:
            return self.text
        return f"{self.text}, at least since {time_of(self.since):%F %T} UTC"


class WatcherStatus(BaseModel):
    """What a watcher has stored.

    Watermark, floor and forms by day are saved with each event, else about once an hour; the rest
    at the first poll, and every 15 s while a triggerer runs it. Times are in seconds since 1970.

    :param poll_interval: seconds: the watcher's, else its configuration's; 0: neither is stored.
    :param unpolled_since: when it began; or, if another watched before, the last poll of that.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, allow_inf_nan=False)

    poll_interval: float = 0.0
    unpolled_since: Time | None = None
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
    :param refusal: why its watcher refuses what is stored; empty if it does not.
    :param was_watched: by a triggerer, maybe long ago.
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
    refusal: str = ""
    was_watched: bool = False

    @property
    def found(self) -> set[str]:
        """Those of its DAGs that Airflow finds in a file."""
        return self.dag_ids - self.lost

    @property
    def is_gone(self) -> bool:
        """Whether Airflow has dropped it or will, with all that is stored with it."""
        return bool(self.lost) and not self.found

    def read_prefix(self) -> str:
        """Return the prefix of the keys of the service to which the connection leads now.

        :raises AirflowNotFoundException: if nobody has defined the connection.
        """
        settings = settings_from(read_connection_outside_of_tasks(self.fsm_conn_id))
        return prefix_for(settings.service)

    def problems(self) -> list[Problem]:
        """Return what is not well. Whether a triggerer and a scheduler run is not checked."""
        return [*self._problems_of_dags(), *self._problems_of_watcher()]

    def _problems_of_dags(self) -> Iterator[Problem]:
        if self.is_disputed:
            yield Problem(
                "Its DAGs define it differently, and only the definition that Airflow read last is "
                "watched: import it from one module, or give one of them another name"
            )
        if self.lost:
            yield Problem(
                f"No form starts {len(self.lost)} of its {len(self.dag_ids)} DAGs, which Airflow "
                "does not find in a file: Airflow's list of import errors may say why. If a DAG "
                "was removed, delete it in Airflow, too"
            )
        if not self.is_active:
            yield Problem(
                "Nothing watches it, as Airflow has not activated it: another asset has its name, "
                "or no DAG defines it"
            )
        if not self.dag_ids:
            yield Problem("No form starts a DAG: it starts none")
        elif self.found and self.found <= self.paused:
            yield Problem("No form starts a DAG: all that it starts are paused")

    def _problems_of_watcher(self) -> Iterator[Problem]:
        if self.read_error:
            place = getattr(self.read_error, "place", None)
            where = f": no database was found at {place}" if place else ""
            yield Problem(f"What its watcher has stored cannot be read{where}")
        elif self.refusal:
            yield Problem(f"Nothing watches it: {self.refusal}")
        elif not self.was_watched:
            yield Problem(
                "No triggerer watches it, so no form starts a DAG: none is running, the DAG's file "
                "has an error, or Airflow has deleted the asset's configuration (then restart the "
                "triggerer)"
            )
        else:
            yield from self._problems_of_polls()

    def _problems_of_polls(self) -> Iterator[Problem]:
        now = time.time()
        stored = self.stored
        # A time in the future: a clock was wrong, or a task has stored it.
        if stored.seen_at is not None and abs(now - stored.seen_at) > SILENCE:
            yield Problem(
                "Nothing watches it, so no form starts a DAG: its triggerer is gone, or its DAGs "
                "are paused",
                stored.seen_at,
            )
        if (stored.watermark or 0.0) > now + SILENCE:
            yield Problem("Its watermark is in the future: set it back")
        if stored.error:
            yield Problem(f"Its polls fail: {stored.error}", stored.failing_since)
        last = stored.polled_at or stored.unpolled_since
        if abs(now - (last or 0.0)) > 3 * stored.poll_interval + POLL_SLACK:
            text = f"One poll is due every {stored.poll_interval:g} s, and none was complete"
            yield Problem(text, last)
