"""A job is never created twice, and never silently lost: tasks that are killed on a real Airflow.

``FSM_KILLS_SEED`` repeats the random kills of a test that has failed. ``FSM_KILLS_STORES`` names
where the ledger is, by default ``Airflow,SQLite``; ``PostgreSQL`` is the third.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

import psutil
import pytest

from tests.capabilities import IS_AIRFLOW_3
from tests.seeds import SEED
from tests.system import kill_stores
from tests.system.airflow_api import PATIENCE
from tests.system.kills import (
    ALSO_AFTER_ONE_KILL,
    BULK_JOBS,
    BULK_RUNS,
    CONCURRENCY,
    IS_RETRIED,
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
WHO_DIES = ("both", "task")
KILLED = list(product(POINTS, WHO_DIES) if IS_COMPLETE else zip(POINTS, cycle(WHO_DIES)))
"""Where a task is killed, and who dies with it."""
CLEARED_BULK_RUNS = 3
AFTER_ONE_KILL = {2} if IS_AIRFLOW_3 else {2, 3}
"""Attempts. Airflow 2 sometimes takes the second one for dead as well, even after its end."""
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


@pytest.fixture(scope="module", params=kill_stores.chosen_parameters(*kill_stores.STORES))
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
    """All kills at once, since a killed worker is noticed only after seconds of silence.

    Each is known by its point and victim, a random one by its number.
    """
    runs: dict[object, Run] = {}
    with stage.quiet():
        for point, victim in KILLED:
            runs[point, victim] = stage.start_one("kills_one", point, victim, fsm_conn_id)
        for number, kill in enumerate(random_kills(SEED, RUNS)):
            [runs[number]] = stage.start_bulk("kills_bulk", kill, fsm_conn_id)
    reports = _finish_all(stage, runs)
    if not IS_RETRIED:
        not_retried: dict[object, Run] = {}
        for key, run in runs.items():
            is_retried = reports[key].attempts > 1
            if not is_retried:
                not_retried[key] = run
        reports |= _clear_and_finish(stage, not_retried)
    after = {key: Aftermath(runs[key], report) for key, report in reports.items()}

    cleared: dict[object, Run] = {key: runs[key] for key in KILLED}
    failed_first = sorted(range(RUNS), key=lambda number: after[number].retried.state != "failed")
    for number in failed_first[:CLEARED_BULK_RUNS]:
        cleared[number] = runs[number]
    for key, report in _clear_and_finish(stage, cleared).items():
        after[key].cleared = report
    return after


def _clear_and_finish(stage: Stage, runs: dict[object, Run]) -> dict[object, Report]:
    with stage.quiet():
        stage.clear(runs.values())
    return _finish_all(stage, runs)


def _finish_all(stage: Stage, runs: dict[object, Run]) -> dict[object, Report]:
    reports = stage.finish(runs.values())
    return dict(zip(runs, reports, strict=True))


@pytest.mark.parametrize(("point", "victim"), KILLED)
def test_a_job_whose_task_is_killed_is_not_created_twice(
    killed: dict[object, Aftermath], point: str, victim: str
) -> None:
    retried = killed[point, victim].retried
    cleared = killed[point, victim].cleared

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
        said = message.search(retried.log)
        said_again = message.search(cleared.log)
        assert said, retried.log
        assert said_again, cleared.log
        assert said[0] == said_again[0]


def test_of_many_jobs_none_is_created_twice_or_lost_wherever_their_task_is_killed(
    killed: dict[object, Aftermath],
    fsm_conn_id: str,
    record_property: Callable[[str, str], None],
) -> None:
    reports = [killed[number].retried for number in range(RUNS)]
    tally = Tally.from_reports(reports)
    print(f"seed {SEED}, {fsm_conn_id}: {tally}")

    assert {report.attempts for report in reports} <= AFTER_ONE_KILL
    others = replace(tally, created=0, uncertain_existing=0, uncertain_missing=0)
    assert others == Tally(asked=RUNS * BULK_JOBS)
    for report in reports:
        outcomes = Counter(outcome["outcome"] for outcome in report.result)
        assert outcomes["uncertain"] <= CONCURRENCY + CONCURRENCY // 2
        state = "failed" if outcomes["uncertain"] else "success"
        assert report.state in {state} | ALSO_AFTER_ONE_KILL
    kill_stores.record_capability(record_property, "once in a run", fsm_conn_id)


def test_a_cleared_task_gives_the_same_outcomes_and_creates_nothing(
    killed: dict[object, Aftermath],
) -> None:
    bulk_runs = [killed[number] for number in range(RUNS)]

    cleared = [aftermath for aftermath in bulk_runs if aftermath.cleared]

    assert cleared
    for aftermath in cleared:
        assert aftermath.cleared
        assert aftermath.cleared.jobs == aftermath.retried.jobs
        by = aftermath.run.task
        expected = [_outcome_when_cleared(outcome, by) for outcome in aftermath.retried.result]
        assert aftermath.cleared.result == expected


def _outcome_when_cleared(outcome: dict[str, Any], by: dict[str, Any]) -> dict[str, Any]:
    """Give the outcome of a task that is cleared, for one that it had when it was retried."""
    if outcome["outcome"] == "created":
        return {**outcome, "outcome": "existing", "by": by}
    return {**outcome, "by": by}


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

    assert retried.attempts in AFTER_ONE_KILL
    assert woken.attempts == retried.attempts
    assert cleared.attempts == retried.attempts + 1
    for report in (retried, woken, cleared):
        tally = Tally.from_reports([report])
        print(f"woken, {fsm_conn_id}: {tally}")
        # What was claimed and not sent yet is known not to exist, once the task has woken.
        rest = tally.uncertain_existing + tally.uncertain_missing + tally.not_created
        assert tally.created + rest == BULK_JOBS
        assert rest <= CONCURRENCY + CONCURRENCY // 2
    assert tally.not_created == 0


def _run_in_the_middle(stage: Stage, fsm_conn_id: str) -> tuple[Run, psutil.Process]:
    """Start a run, and return when its requests are sent and none of them is answered.

    Its task writes nothing then: one that is stopped in a transaction locks a SQLite file.
    """
    # Under way together, they leave Airflow's API alone for a while: see Stage.quiet.
    stage.service.settings.latency = 2.0
    [run] = stage.start_bulk("kills_bulk", None, fsm_conn_id)

    def is_in_the_middle() -> bool:
        return stage.killer.seen[run.number] >= 2 * CONCURRENCY

    stage.service.wait_for(is_in_the_middle, PATIENCE)
    process = psutil.Process(stage.task(run)["pid"])
    time.sleep(stage.service.settings.latency / 4)
    return run, process
