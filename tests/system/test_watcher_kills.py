"""An asset's watcher loses no form: its triggerer is killed, its DAG is paused or edited.

Forms come all the time. What is emitted is read from Airflow's database. ``FSM_KILLS_SEED`` repeats
the random kills of a test that has failed.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from fsm_provider.testing import FakeFieldService
from tests.capabilities import ASSETS, STATE_STORE
from tests.seeds import SEED
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow

ASSETS.require()

DAG_ID = "killed"
FORM_NAMES = ("Gas Safety Record", "Job Sign-off")
DAG = """\
    from airflow.providers.common.compat.sdk import dag, task
    from fsm_provider.assets.forms import completed_forms, forms_from_events

    @dag(dag_id="{dag_id}", schedule={schedule}, catchup=False, max_active_runs=1)
    def killed():
        @task
        def read(*, triggering_asset_events):
            return [form["id"] for form in forms_from_events(triggering_asset_events)]

        read()

    killed()
"""
ASSET = "completed_forms('killed', {arguments})"
BEGAN = f"start_from='{(datetime.now(UTC) - timedelta(hours=1)).isoformat()}'"
"""What was updated before is history; forms are late by less."""
DEFAULTS = f"poll_interval=1, {BEGAN}"
DEFAULT_SCHEDULE = ASSET.format(arguments=DEFAULTS)
OTHERS = {
    "interval": f"poll_interval=2, {BEGAN}",
    "filter": f"{DEFAULTS}, form_names={FORM_NAMES!r}",
}
ENVIRONMENT = {
    # A triggerer that is gone is noticed by its silence. Airflow's own defaults are 30 and 5 s.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
}
MEAN_PAUSE = 0.4
"""Seconds between two forms."""
MAX_LATE = 600.0
"""Seconds that a form is late, at most: phones sync late."""
RANDOM_KILLS = 6
INTERRUPTIONS = 3
POINTS = (
    "a poll has found a form",
    "an event is stored",
    "a watermark is stored",
    "another one has begun",
)


@dataclass
class Stage:
    """An Airflow with a watched asset, and its service."""

    airflow: LocalAirflow
    service: FakeFieldService
    dags: Path
    expected: list[int] = field(default_factory=list)
    interruptions: int = 0

    def __post_init__(self) -> None:
        self._database = create_engine(self.airflow.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    def events(self) -> list[list[int]]:
        """The forms of each event, in order."""
        query = text("SELECT extra FROM asset_event ORDER BY id")
        with self._database.connect() as connection:
            extras = connection.execute(query).scalars().all()
        return [forms_of_event(extra) for extra in extras]

    def emitted(self, start: int = 0) -> set[int]:
        """The forms of the events from one on."""
        forms: set[int] = set()
        for event in self.events()[start:]:
            forms.update(event)
        return forms

    def polls(self) -> int:
        return len(self.service.requests_to("GET", "/forms"))

    def until_polled(self, times: int = 3) -> None:
        wanted = self.polls() + times
        wait_until(lambda: self.polls() >= wanted, "the watcher polls")

    def until_silent(self) -> None:
        """Wait until the watcher is gone."""

        def is_silent() -> bool:
            last_request = self.service.requests[-1]
            return datetime.now(UTC) - last_request.at > timedelta(seconds=6)

        wait_until(is_silent, "the watcher polls no more")

    def write_dag(self, schedule: str = DEFAULT_SCHEDULE, dag_id: str = DAG_ID) -> None:
        file = self.dags / f"{dag_id}.py"
        file.write_text(dedent(DAG).format(schedule=schedule, dag_id=dag_id))

    def add(self, late: float = 0.0, form_name: str = FORM_NAMES[0]) -> int:
        at = datetime.now(UTC) - timedelta(seconds=late)
        form = int(self.service.add_form(form_name=form_name, created=at)["id"])
        self.expected.append(form)
        return form

    @contextmanager
    def forms_coming(self, chance: random.Random) -> Iterator[None]:
        """Add forms at random times, some of them late."""
        ended = threading.Event()

        def add() -> None:
            while not ended.wait(chance.expovariate(1 / MEAN_PAUSE)):
                late = chance.uniform(0, MAX_LATE)
                self.add(chance.choice([0.0, 0.0, 0.0, late]))

        adding = threading.Thread(target=add)
        adding.start()
        try:
            yield
        finally:
            ended.set()
            adding.join()

    def kill(self) -> None:
        """Kill the triggerer, and start another one."""
        self.airflow.kill("triggerer")
        self.interruptions += 1
        self.airflow.restart("triggerer")

    def check_emitted(self, title: str, *, began_anew: bool = False) -> None:
        """Wait until every form is emitted. An interruption repeats the forms of one event at most.

        :param began_anew: Airflow may have dropped what is stored with the asset.
        """
        expected = set(self.expected)
        interruptions = self.interruptions
        self.expected = []
        self.interruptions = 0

        def missing() -> set[int]:
            return expected - self.emitted()

        try:
            wait_until(lambda: not missing(), "every form is emitted")
        finally:
            times: Counter[int] = Counter()
            repeating_events = 0
            for event in self.events():
                forms = expected.intersection(event)
                is_repeating = not forms.isdisjoint(times)
                if is_repeating:
                    repeating_events += 1
                times.update(form for form in event if form in expected)
            repeated = [form for form, count in times.items() if count > 1]
            print(
                f"{title}: {interruptions} interruptions, {len(expected)} forms, {len(missing())} "
                f"lost, {len(repeated)} repeated in {repeating_events} events, "
                f"at most {max(times.values())} times"
            )
        assert began_anew or repeating_events <= interruptions


def forms_of_event(extra: str | dict[str, Any]) -> list[int]:
    """Give the forms of an event as Airflow's database has it: as text, or as JSON."""
    event = json.loads(extra) if isinstance(extra, str) else extra
    return [form["id"] for form in event["payload"]["forms"]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    dags = tmp_path_factory.mktemp("dags")
    home = tmp_path_factory.mktemp("airflow")
    with FakeFieldService() as service:
        service.seed_forms(30, first_created=datetime.now(UTC) - timedelta(days=2))
        if STATE_STORE.is_there:
            connections = {"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json()}
        else:
            connections = connections_with_ledger(service, home)
        with LocalAirflow(dags, home, ENVIRONMENT | connections) as airflow:
            running = Stage(airflow, service, dags)
            running.write_dag()
            airflow.wait_for_dag(DAG_ID)
            running.until_polled()
            yield running


def until(reached: Callable[[], bool]) -> None:
    """Wait for a point in the life of an event, as precisely as possible."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_point(stage: Stage, point: str) -> None:
    if point == "another one has begun":
        stage.until_polled(1)
        return
    before = len(stage.events())
    form = stage.add()
    if point == "a poll has found a form":
        polls = stage.polls()
        until(lambda: stage.polls() > polls)
        return
    until(lambda: form in stage.emitted(start=before))
    if point == "a watermark is stored":
        time.sleep(2.5)  # from an event to its restart: 2 s


def test_no_form_is_lost_when_the_triggerer_is_killed(stage: Stage) -> None:
    chance = random.Random(SEED)
    with stage.forms_coming(chance):
        for _ in range(RANDOM_KILLS):
            stage.until_polled(1)
            time.sleep(chance.uniform(0, 8))
            stage.kill()
        for point in POINTS:
            if point != "another one has begun":
                stage.until_polled(2)
            until_point(stage, point)
            stage.kill()

    stage.check_emitted(f"seed {SEED}, killed")


def pause(stage: Stage, paused: bool) -> None:
    stage.airflow.pause(DAG_ID, paused)


def take_off_the_schedule(stage: Stage, is_off: bool) -> None:
    if is_off:
        stage.write_dag("None")
    else:
        stage.write_dag()


@pytest.mark.parametrize("interrupt", [pause, take_off_the_schedule])
def test_an_asset_that_is_not_watched_for_a_while(
    stage: Stage, interrupt: Callable[[Stage, bool], None]
) -> None:
    chance = random.Random(SEED)
    with stage.forms_coming(chance):
        for _ in range(INTERRUPTIONS):
            time.sleep(chance.uniform(0, 3))
            interrupt(stage, True)
            stage.interruptions += 1
            stage.until_silent()
            interrupt(stage, False)
            stage.until_polled()

    began_anew = interrupt is take_off_the_schedule and STATE_STORE.is_there
    stage.check_emitted(interrupt.__name__, began_anew=began_anew)


@pytest.mark.parametrize("changed", OTHERS)
def test_a_watcher_that_changes_loses_no_form_of_either(stage: Stage, changed: str) -> None:
    with stage.forms_coming(random.Random(SEED)):
        stage.write_dag(ASSET.format(arguments=OTHERS[changed]))
        stage.add(form_name=FORM_NAMES[0])
        time.sleep(15)
        stage.add(form_name=FORM_NAMES[1])
        stage.write_dag()
        time.sleep(15)

    stage.check_emitted(f"{changed} changed")


@pytest.mark.parametrize("disputed", OTHERS)
def test_two_dags_that_disagree_about_an_asset_lose_no_form(stage: Stage, disputed: str) -> None:
    other = f"another_{disputed}"
    with stage.forms_coming(random.Random(SEED)):
        stage.write_dag(ASSET.format(arguments=OTHERS[disputed]), other)
        stage.airflow.wait_for_dag(other)
        time.sleep(30)
        stage.write_dag("None", other)
        time.sleep(15)

    stage.check_emitted(f"two DAGs, {disputed} disputed")
