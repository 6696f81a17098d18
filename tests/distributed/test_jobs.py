"""Jobs are created once, whoever of a cluster is killed meanwhile."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import psutil
import pytest

from fsm_provider.testing import FakeFieldService
from tests.distributed import recorded
from tests.distributed.airflow import DistributedAirflow
from tests.history import unexplained
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.form_events import add_forms, times_emitted, until_emitted
from tests.system.kills import (
    BULK_JOBS,
    CONCURRENCY,
    LATENCY,
    Run,
    Stage,
    Tally,
    process_behind,
    run_number,
)

RUNS = int(os.environ.get("FSM_CLUSTER_RUNS", "8"))
"""More than the workers have slots for."""
JOBS = RUNS * BULK_JOBS


@pytest.mark.parametrize("fsm_conn_id", ["fsm_default", "fsm_postgresql"])
@pytest.mark.parametrize("worker", ["worker", "worker-2"])
def test_a_killed_worker_loses_no_job_and_creates_none_twice(
    airflow: DistributedAirflow,
    stage: Stage,
    chance: random.Random,
    record_property: Callable[[str, object], None],
    worker: str,
    fsm_conn_id: str,
) -> None:
    requests = chance.randint(1, BULK_JOBS * 3 // 4)
    runs = _start(stage, fsm_conn_id)
    _until_a_run_has_sent(requests, airflow, stage, worker)
    time.sleep(chance.uniform(0.0, 2 * LATENCY))
    airflow.kill(worker)
    killed_at = datetime.now(UTC)
    reports = stage.finish(runs)
    seconds = (datetime.now(UTC) - killed_at).total_seconds()
    retried = [run for run, report in zip(runs, reports, strict=True) if report.attempts > 1]
    noticed = [_seconds_until_started(stage, run, killed_at) for run in retried]
    orphans = airflow.age_messages()
    airflow.start_again(worker)
    wait_until(lambda: all(map(airflow.times_handled, orphans)), "the messages came again")

    tally = Tally.from_reports(reports)
    record_property(
        "figures",
        f"killed with {len(retried)} of {RUNS} runs, after {requests} jobs of one: {tally}; tried "
        f"again after {noticed} s, over after {seconds:.0f} s; {len(orphans)} messages delivered "
        "again",
    )
    assert len(orphans) >= len(retried)
    reports_now = stage.finish(runs)
    for report, report_now in zip(reports, reports_now, strict=True):
        assert report_now.jobs == report.jobs
    history = [*recorded.of_service(stage, runs), *recorded.of_tasks(stage, runs, reports_now)]
    if fsm_conn_id == "fsm_postgresql":
        history += recorded.of_ledger(stage, runs, fsm_conn_id)
    assert unexplained(history) == []
    assert retried
    assert {report.attempts for report in reports} == {1, 2}
    others = replace(tally, created=0, uncertain_existing=0, uncertain_missing=0)
    assert others == Tally(asked=JOBS)
    for report in reports:
        outcomes = Counter(outcome["outcome"] for outcome in report.result)
        most_uncertain = CONCURRENCY + CONCURRENCY // 2 if report.attempts == 2 else 0
        assert outcomes["uncertain"] <= most_uncertain
        assert report.state == ("failed" if outcomes["uncertain"] else "success")


def _seconds_until_started(stage: Stage, run: Run, since: datetime) -> int:
    started_at = datetime.fromisoformat(stage.task(run)["start_date"])
    return round((started_at - since).total_seconds())


@pytest.mark.parametrize("scheduler", ["scheduler", "scheduler-2"])
def test_a_killed_scheduler_loses_nothing_and_does_nothing_twice(
    airflow: DistributedAirflow,
    stage: Stage,
    watched: FakeFieldService,
    chance: random.Random,
    record_property: Callable[[str, object], None],
    scheduler: str,
) -> None:
    before = stage.killer.seen.total()
    requests = chance.randint(1, JOBS // 2)
    runs = _start(stage)
    stage.service.wait_for(lambda: stage.killer.seen.total() >= before + requests, PATIENCE)
    forms = add_forms(watched, 3)
    time.sleep(chance.uniform(0.0, 3.0))
    airflow.kill(scheduler)
    killed_at = time.monotonic()
    forms += add_forms(watched, 3)
    reports = stage.finish(runs)
    seconds = time.monotonic() - killed_at
    forms += add_forms(watched)
    until_emitted(airflow, forms)
    airflow.start_again(scheduler)

    tally = Tally.from_reports(reports)
    attempts = Counter(report.attempts for report in reports)
    emitted = Counter(times_emitted(airflow, forms).values())
    record_property(
        "figures",
        f"killed after {requests} of {JOBS} jobs: {tally}, attempts {attempts}, over after "
        f"{seconds:.0f} s; forms by how often they were emitted: {emitted}",
    )
    assert tally == Tally(asked=JOBS, created=JOBS)
    assert set(attempts) == {1}
    assert emitted == {1: len(forms)}


def _start(stage: Stage, fsm_conn_id: str = "fsm_default") -> list[Run]:
    runs: list[Run] = []
    for _ in range(RUNS):
        runs += stage.start_bulk("kills_bulk", None, fsm_conn_id)
    return runs


def _until_a_run_has_sent(
    requests: int, airflow: DistributedAirflow, stage: Stage, worker: str
) -> None:
    """Come back while a run of this worker sends its requests, after so many of them."""

    @cache
    def sender(connection: tuple[str, int]) -> str:
        return airflow.name_for(process_behind(connection))

    def is_the_time() -> bool:
        if not stage.service.requests:
            return False
        newest = stage.service.requests[-1]
        sent = stage.killer.seen[run_number(newest.path)]
        if not requests <= sent <= BULK_JOBS - CONCURRENCY:
            return False
        try:
            return sender(newest.connection) == worker
        except (ValueError, psutil.NoSuchProcess):  # it has just ended
            return False

    stage.service.wait_for(is_the_time, PATIENCE)
