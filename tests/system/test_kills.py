"""A job is never created twice, and never silently lost: tasks that are killed on a real Airflow.

``FSM_KILLS_SEED`` repeats the random kills of a test that has failed. ``FSM_KILLS_STORES`` names
where the ledger is, by default ``Airflow,SQLite``; ``PostgreSQL`` is the third.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product

import psutil
import pytest

from tests.capabilities import IS_AIRFLOW_3, RETRIES_OF_KILLED
from tests.seeds import SEED
from tests.system import kill_stores
from tests.system.airflow_api import PATIENCE
from tests.system.kills import (
    BULK_JOBS,
    BULK_RUNS,
    CONCURRENCY,
    LATENCY,
    OURS,
    POINTS,
    UNCERTAIN,
    Report,
    Run,
    Stage,
    Tally,
    random_kills,
    staged,
)

IS_COMPLETE = len(kill_stores.CHOSEN) == len(kill_stores.STORES)
"""Unless all stores are tested, there are fewer kills."""
RUNS = BULK_RUNS if IS_COMPLETE else BULK_RUNS // 10
"""Random kills for each store."""
KILLED = list(
    product(POINTS, ("both", "task")) if IS_COMPLETE else zip(POINTS, cycle(("both", "task")))
)
"""Where a task is killed, and who dies with it."""
CLEARED_BULK_RUNS = 3
IS_RETRIED = RETRIES_OF_KILLED.is_there or not IS_AIRFLOW_3
"""Whether Airflow retries a task whose process was killed; else the test clears it."""
AFTER_ONE_KILL = {2} if IS_AIRFLOW_3 else {2, 3}
"""Attempts. Airflow 2 sometimes takes the second one for dead as well, even after its end."""
ALSO_AFTER_ONE_KILL = set() if IS_AIRFLOW_3 else {"up_for_retry"}
JOBS_AFTER = {
    "before the POST": 0,
    "stored, not answered": 1,
    "answered, not recorded": 1,
    "recorded": 1,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("kills"), OURS, stores=kill_stores.available()) as running:
        yield running


@pytest.fixture(scope="module", params=kill_stores.chosen(*kill_stores.STORES))
def fsm_conn_id(request: pytest.FixtureRequest) -> str:
    """The connection, which has the ledger in one of the stores."""
    return kill_stores.STORES[request.param]


@dataclass
class Aftermath:
    """The reports after a kill: of the retried task, and of the cleared one."""

    run: Run
    retried: Report
    cleared: Report | None = None


@pytest.fixture(scope="module")
def killed(stage: Stage, fsm_conn_id: str) -> dict[object, Aftermath]:
    """All kills at once, since a killed worker is noticed only after seconds of silence."""
    runs: dict[object, Run] = {}
    with stage.quiet():
        for point, victim in KILLED:
            runs[point, victim] = stage.start_one("kills_one", point, victim, fsm_conn_id)
        for number, kill in enumerate(random_kills(SEED, RUNS)):
            [runs[number]] = stage.start_bulk("kills_bulk", kill, fsm_conn_id)
    reports = dict(zip(runs, stage.finish(runs.values()), strict=True))
    if not IS_RETRIED:
        not_retried = [key for key, report in reports.items() if report.attempts == 1]
        with stage.quiet():
            stage.clear([runs[key] for key in not_retried])
        again = stage.finish([runs[key] for key in not_retried])
        reports |= zip(not_retried, again, strict=True)
    after = {key: Aftermath(runs[key], report) for key, report in reports.items()}

    failed_first = sorted(range(RUNS), key=lambda number: after[number].retried.state != "failed")
    again = [key for key in runs if key not in range(RUNS)] + failed_first[:CLEARED_BULK_RUNS]
    with stage.quiet():
        stage.clear([runs[key] for key in again])
    for key, report in zip(again, stage.finish([runs[key] for key in again]), strict=True):
        after[key].cleared = report
    return after


@pytest.mark.parametrize(("point", "victim"), KILLED)
def test_a_job_whose_task_is_killed_is_not_created_twice(
    killed: dict[object, Aftermath], point: str, victim: str
) -> None:
    retried, cleared = killed[point, victim].retried, killed[point, victim].cleared
    assert cleared
    assert retried.attempts in AFTER_ONE_KILL
    assert cleared.attempts == retried.attempts + 1
    assert len(retried.job_ids) == JOBS_AFTER[point]
    assert cleared.jobs == retried.jobs
    state = "success" if point == "recorded" else "failed"
    assert retried.state in {state} | ALSO_AFTER_ONE_KILL
    assert cleared.state == state
    if state == "success":
        assert [retried.result["id"]] == retried.job_ids
        assert cleared.result == retried.result
    else:
        number = killed[point, victim].run.number
        message = re.compile(
            rf"POST /properties/{number}000/jobs {UNCERTAIN}: .*"
            rf"at 2[0-9T:.+-]+, with key 'create', propertyID {number}000, "
            rf"customerReference 'PO-{number}-0'"
        )
        [said, said_again] = [message.search(report.log) for report in (retried, cleared)]
        assert said, retried.log
        assert said_again, cleared.log
        assert said[0] == said_again[0]


def test_of_many_jobs_none_is_created_twice_or_lost_wherever_their_task_is_killed(
    killed: dict[object, Aftermath], fsm_conn_id: str, record_property: Callable[[str, str], None]
) -> None:
    reports = [killed[number].retried for number in range(RUNS)]
    tally = Tally.from_reports(reports)
    print(f"seed {SEED}, {fsm_conn_id}: {tally}")
    assert {report.attempts for report in reports} <= AFTER_ONE_KILL
    assert replace(tally, created=0, uncertain_existing=0, uncertain_missing=0) == Tally(
        asked=RUNS * BULK_JOBS
    )
    for report in reports:
        outcomes = Counter(outcome["outcome"] for outcome in report.result)
        assert outcomes["uncertain"] <= CONCURRENCY + CONCURRENCY // 2
        states = {"failed" if outcomes["uncertain"] else "success"} | ALSO_AFTER_ONE_KILL
        assert report.state in states
    kill_stores.note(record_property, "once in a run", fsm_conn_id)


def test_a_cleared_task_gives_the_same_outcomes_and_creates_nothing(
    killed: dict[object, Aftermath],
) -> None:
    cleared = [killed[number] for number in range(RUNS) if killed[number].cleared]
    assert cleared
    for aftermath in cleared:
        assert aftermath.cleared
        assert aftermath.cleared.jobs == aftermath.retried.jobs
        by = aftermath.run.task
        assert aftermath.cleared.result == [
            {
                **one,
                "outcome": "existing" if one["outcome"] == "created" else one["outcome"],
                "by": by,
            }
            for one in aftermath.retried.result
        ]


def test_a_worker_that_wakes_after_its_retry_creates_nothing_twice(
    stage: Stage, fsm_conn_id: str
) -> None:
    run, task = _run_in_the_middle(stage, fsm_conn_id)
    worker = task.parent()
    assert worker
    worker.suspend()
    task.suspend()
    stage.service.settings.latency = LATENCY
    try:
        [retried] = stage.finish([run])
    finally:
        worker.resume()
        task.resume()
    task.wait(PATIENCE)
    [woken] = stage.finish([run])
    stage.clear([run])
    [cleared] = stage.finish([run])

    assert (retried.attempts, woken.attempts, cleared.attempts) == (2, 2, 3)
    for report in (retried, woken, cleared):
        tally = Tally.from_reports([report])
        print(f"woken, {fsm_conn_id}: {tally}")
        # What was claimed and not sent yet is known not to exist, once the task has woken.
        rest = tally.uncertain_existing + tally.uncertain_missing + tally.not_created
        assert tally.created + rest == BULK_JOBS
        assert rest <= CONCURRENCY + CONCURRENCY // 2
    assert tally.not_created == 0


def _run_in_the_middle(stage: Stage, fsm_conn_id: str) -> tuple[Run, psutil.Process]:
    # Under way together, they leave Airflow's API alone for a while: see Stage.quiet.
    stage.service.settings.latency = 2.0
    [run] = stage.start_bulk("kills_bulk", None, fsm_conn_id)
    stage.service.wait_for(lambda: stage.killer.seen[run.number] >= 2 * CONCURRENCY, PATIENCE)
    return run, psutil.Process(stage.task(run)["pid"])
