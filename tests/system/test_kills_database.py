"""What only a ledger in a database promises: a key is sent once, whichever run asks.

``FSM_KILLS_STORES`` names the databases, by default ``SQLite``.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from tests.seeds import SEED
from tests.system import kill_stores
from tests.system.airflow_api import PATIENCE
from tests.system.kills import (
    ALSO_AFTER_ONE_KILL,
    BULK_JOBS,
    CONCURRENCY,
    IS_RETRIED,
    LATENCY,
    OURS,
    VICTIMS,
    Kill,
    Report,
    Run,
    Stage,
    Tally,
    staged,
)

STORES = ("SQLite", "PostgreSQL")
TOGETHER = "together"
NAMES = (TOGETHER, *[f"{victim} killed" for victim in VICTIMS])
"""What becomes of two runs of one list: they run together, or one of them is killed."""
SLOW = 20 * LATENCY
"""The latency at which two runs overlap, though one starts seconds after the other."""
MAX_UNCERTAIN = CONCURRENCY + CONCURRENCY // 2
AWAY_SECONDS = 3.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # Runs of one list are to run together, and some wait for a killed one.
    folder = tmp_path_factory.mktemp("kills")
    with staged(folder, OURS, stores=kill_stores.available(), slots=10) as running:
        yield running


@pytest.fixture(scope="module", params=kill_stores.chosen_parameters(*STORES))
def fsm_conn_id(request: pytest.FixtureRequest) -> str:
    """The connection, which has the ledger in one of the databases."""
    return kill_stores.STORES[request.param]


@dataclass
class Ended:
    """Runs of one list, and how they have ended."""

    runs: list[Run]
    reports: list[Report]

    def runs_without_result(self) -> list[Run]:
        runs: list[Run] = []
        for run, report in zip(self.runs, self.reports, strict=True):
            has_result = report.result is not None
            if not has_result:
                runs.append(run)
        return runs


@pytest.fixture(scope="module")
def all_ended(stage: Stage) -> dict[tuple[str, str], Ended]:
    """All at once, since a killed task's requests count as under way until its lease is over."""
    runs: dict[tuple[str, str], list[Run]] = {}
    stage.service.settings.latency = SLOW
    with stage.quiet():
        # Those first that have to run together, as there are not slots for all.
        for name in NAMES:
            for store in STORES:
                if store in kill_stores.available():
                    fsm_conn_id = kill_stores.STORES[store]
                    runs[fsm_conn_id, name] = _start(stage, name, fsm_conn_id)
    ended = {key: Ended(pair, stage.finish(pair)) for key, pair in runs.items()}
    if not IS_RETRIED:
        not_retried: list[Run] = []
        for pair in ended.values():
            not_retried += pair.runs_without_result()
        with stage.quiet():
            stage.clear(not_retried)
        ended = {key: Ended(pair, stage.finish(pair)) for key, pair in runs.items()}
    stage.service.settings.latency = LATENCY
    return ended


def _start(stage: Stage, name: str, fsm_conn_id: str) -> list[Run]:
    chance = Random(f"{SEED} {fsm_conn_id} {name}")
    request = chance.randint(CONCURRENCY, BULK_JOBS * 3 // 4)
    kill = None
    if name != TOGETHER:
        victim = name.removesuffix(" killed")
        kill = Kill(victim, request, chance.uniform(0, SLOW))
    return stage.start_bulk("kills_bulk", kill, fsm_conn_id, once_per="key", runs=2)


@pytest.fixture
def ended(all_ended: dict[tuple[str, str], Ended], fsm_conn_id: str) -> dict[str, Ended]:
    """Those with this ledger."""
    return {name: all_ended[fsm_conn_id, name] for name in NAMES}


def test_two_runs_of_one_list_at_the_same_moment_create_each_job_once(
    ended: dict[str, Ended],
    fsm_conn_id: str,
    record_property: Callable[[str, str], None],
) -> None:
    runs = ended[TOGETHER].runs
    reports = ended[TOGETHER].reports

    assert [report.state for report in reports] == ["success", "success"]
    assert Tally.from_reports(reports) == Tally(asked=2 * BULK_JOBS, created=2 * BULK_JOBS)
    assert any("is sending it: waiting until" in report.log for report in reports), (
        "one came after the other"
    )
    first, second = reports
    first_created = _indices(first, "created")
    second_created = _indices(second, "created")
    assert not first_created & second_created
    assert first_created | second_created == set(range(BULK_JOBS))
    first_run, second_run = runs
    for report, other in ((first, second_run), (second, first_run)):
        by = _by_whom(report, "existing")
        assert by == [other.task] * len(by)
    kill_stores.record_capability(record_property, "once across runs", fsm_conn_id)


@pytest.mark.parametrize("victim", VICTIMS)
def test_of_two_runs_one_of_which_is_killed_the_other_creates_the_rest(
    ended: dict[str, Ended], victim: str
) -> None:
    runs = ended[f"{victim} killed"].runs
    reports = ended[f"{victim} killed"].reports
    tally = Tally.from_reports(reports)
    attempts = [report.attempts for report in reports]
    print(f"seed {SEED}, {victim} killed: {tally}, attempts {attempts}")

    others = replace(tally, created=0, uncertain_existing=0, uncertain_missing=0)
    assert others == Tally(asked=2 * BULK_JOBS)
    first, second = reports
    # A task whose worker alone is killed lives on for a while, and records what becomes of its own
    # requests.
    assert _indices(first, "uncertain") == _indices(second, "uncertain") or victim == "worker"
    # In Airflow 2 it even ends well.
    dead = [run.task for run, report in zip(runs, reports, strict=True) if report.attempts > 1]
    assert dead or victim == "worker"
    for report in reports:
        uncertain = _indices(report, "uncertain")
        assert len(uncertain) <= MAX_UNCERTAIN
        state = "failed" if uncertain else "success"
        assert report.state in {state} | ALSO_AFTER_ONE_KILL
        assert all(by in dead for by in _by_whom(report, "uncertain"))


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGQUIT])
def test_a_database_that_is_restarted_meanwhile_delays_the_task(
    stage: Stage, fsm_conn_id: str, stop_signal: signal.Signals
) -> None:
    if fsm_conn_id != "fsm_postgresql" or stage.ledgers.postgresql is None:
        pytest.skip("SQLite has no server")
    stage.service.settings.latency = SLOW
    [run] = stage.start_bulk("kills_bulk", None, fsm_conn_id)

    def is_in_the_middle() -> bool:
        return stage.killer.seen[run.number] >= 2 * CONCURRENCY

    def are_all_sent() -> bool:
        return stage.killer.seen[run.number] == BULK_JOBS

    stage.service.wait_for(is_in_the_middle, PATIENCE)

    stage.ledgers.postgresql.stop(stop_signal)
    stage.service.settings.latency = LATENCY
    with pytest.raises(TimeoutError):
        stage.service.wait_for(are_all_sent, timeout=AWAY_SECONDS)
    stage.ledgers.postgresql.start()
    [report] = stage.finish([run])

    assert (report.state, report.attempts) == ("success", 1)
    assert Tally.from_reports([report]) == Tally(asked=BULK_JOBS, created=BULK_JOBS)


def _indices(report: Report, outcome: str) -> set[int]:
    """Give the jobs of an outcome, by their places in the list."""
    return {record["index"] for record in _with_outcome(report, outcome)}


def _by_whom(report: Report, outcome: str) -> list[dict[str, Any]]:
    """Give the tasks that have sent the jobs of an outcome."""
    return [record["by"] for record in _with_outcome(report, outcome)]


def _with_outcome(report: Report, outcome: str) -> list[dict[str, Any]]:
    return [record for record in report.result if record["outcome"] == outcome]
