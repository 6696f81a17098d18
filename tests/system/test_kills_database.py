"""What only a ledger in a database promises: a key is sent once, whichever run asks, and however
runs end.

``FSM_KILLS_STORES`` names the databases, by default ``SQLite``.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from tests.seeds import SEED
from tests.system import kill_stores
from tests.system.airflow_api import PATIENCE
from tests.system.kills import (
    BULK_JOBS,
    CONCURRENCY,
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
from tests.system.test_kills import ALSO_AFTER_ONE_KILL, IS_RETRIED

STORES = [store for store in ("SQLite", "PostgreSQL") if store in kill_stores.available()]
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


@pytest.fixture(scope="module", params=kill_stores.chosen("SQLite", "PostgreSQL"))
def fsm_conn_id(request: pytest.FixtureRequest) -> str:
    """The connection, which has the ledger in one of the databases."""
    return kill_stores.STORES[request.param]


@dataclass
class Ended:
    """Runs of one list, and how they have ended."""

    runs: list[Run]
    reports: list[Report]


@pytest.fixture(scope="module")
def all_ended(stage: Stage) -> dict[tuple[str, str], Ended]:
    """All at once, since what a killed task was sending counts as under way until its lease is
    over.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    stage.service.settings.latency = SLOW
    with stage.quiet():
        # Those first that have to run together, as there are not slots for all.
        for name in ("together", *(f"{victim} killed" for victim in VICTIMS)):
            for fsm_conn_id in (kill_stores.STORES[store] for store in STORES):
                runs[fsm_conn_id, name] = _start(stage, name, fsm_conn_id)
    ended = {key: Ended(some, stage.finish(some)) for key, some in runs.items()}
    if not IS_RETRIED:
        reports = [
            pair for one in ended.values() for pair in zip(one.runs, one.reports, strict=True)
        ]
        with stage.quiet():
            stage.clear([run for run, report in reports if report.result is None])
        ended = {key: Ended(some, stage.finish(some)) for key, some in runs.items()}
    stage.service.settings.latency = LATENCY
    return ended


def _start(stage: Stage, name: str, fsm_conn_id: str) -> list[Run]:
    chance = Random(f"{SEED} {fsm_conn_id} {name}")
    victim, request = name.removesuffix(" killed"), chance.randint(CONCURRENCY, BULK_JOBS * 3 // 4)
    planned = None if name == "together" else Kill(victim, request, chance.uniform(0, SLOW))
    return stage.start_bulk("kills_bulk", planned, fsm_conn_id, once_per="key", runs=2)


@pytest.fixture
def ended(all_ended: dict[tuple[str, str], Ended], fsm_conn_id: str) -> dict[str, Ended]:
    """Those with this ledger."""
    return {name: one for (of, name), one in all_ended.items() if of == fsm_conn_id}


def test_two_runs_of_one_list_at_the_same_moment_create_each_job_once(
    ended: dict[str, Ended], fsm_conn_id: str, record_property: Callable[[str, str], None]
) -> None:
    runs, reports = ended["together"].runs, ended["together"].reports

    assert [report.state for report in reports] == ["success", "success"]
    assert Tally.from_reports(reports) == Tally(asked=2 * BULK_JOBS, created=2 * BULK_JOBS)
    created = [_indices(report, "created") for report in reports]
    assert any("is sending it: waiting until" in report.log for report in reports), (
        "one came after the other"
    )
    assert not created[0] & created[1]
    assert created[0] | created[1] == set(range(BULK_JOBS))
    for report, other in zip(reports, reversed(runs), strict=True):
        existing = [one for one in report.result if one["outcome"] == "existing"]
        assert [one["by"] for one in existing] == [other.task] * len(existing)
    kill_stores.note(record_property, "once across runs", fsm_conn_id)


@pytest.mark.parametrize("victim", VICTIMS)
def test_of_two_runs_one_of_which_is_killed_the_other_creates_the_rest(
    ended: dict[str, Ended], victim: str
) -> None:
    runs, reports = ended[f"{victim} killed"].runs, ended[f"{victim} killed"].reports
    tally = Tally.from_reports(reports)
    print(
        f"seed {SEED}, {victim} killed: {tally}, attempts {[report.attempts for report in reports]}"
    )

    assert replace(tally, created=0, uncertain_existing=0, uncertain_missing=0) == Tally(
        asked=2 * BULK_JOBS
    )
    uncertain = [_indices(report, "uncertain") for report in reports]
    # A task whose worker alone is killed lives on for a while, and records what becomes of its own
    # requests.
    assert uncertain[0] == uncertain[1] or victim == "worker"
    # In Airflow 2 it even ends well.
    dead = [run.task for run, report in zip(runs, reports, strict=True) if report.attempts > 1]
    assert dead or victim == "worker"
    for report, indices in zip(reports, uncertain, strict=True):
        assert len(indices) <= MAX_UNCERTAIN
        assert report.state in {"failed" if indices else "success"} | ALSO_AFTER_ONE_KILL
        assert all(one["by"] in dead for one in report.result if one["outcome"] == "uncertain")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_database_that_is_restarted_meanwhile_delays_the_task(
    stage: Stage, fsm_conn_id: str, how: signal.Signals
) -> None:
    if fsm_conn_id != "fsm_postgresql" or stage.ledgers.postgresql is None:
        pytest.skip("SQLite has no server")
    stage.service.settings.latency = SLOW
    [run] = stage.start_bulk("kills_bulk", None, fsm_conn_id)
    stage.service.wait_for(lambda: stage.killer.seen[run.number] >= 2 * CONCURRENCY, PATIENCE)

    stage.ledgers.postgresql.stop(how)
    stage.service.settings.latency = LATENCY
    with pytest.raises(TimeoutError):
        stage.service.wait_for(
            lambda: stage.killer.seen[run.number] == BULK_JOBS, timeout=AWAY_SECONDS
        )
    stage.ledgers.postgresql.start()
    [report] = stage.finish([run])

    assert (report.state, report.attempts) == ("success", 1)
    assert Tally.from_reports([report]) == Tally(asked=BULK_JOBS, created=BULK_JOBS)


def _indices(report: Report, outcome: str) -> set[int]:
    return {one["index"] for one in report.result if one["outcome"] == outcome}
