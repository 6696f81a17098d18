"""What a ledger of many rows costs where responses come at once, and to find a job in it.

Without Airflow.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

from tests.benchmarks import pages
from tests.benchmarks.case import BenchmarkError, Extent, Goal, Round, Row, Tasks, values_of
from tests.benchmarks.clients import connect
from tests.benchmarks.server import Service

_AT_ONCE = 16
_FACTOR = 10
"""A job is looked up among so many times the rows."""
_LOOK_UPS = 100


def tasks(extent: Extent, port: int) -> Tasks:
    return {"rows": {"port": port, "count": extent.rows}}


def measure(port: int, count: int) -> dict[str, float]:
    """Create jobs with a ledger in SQLite, ask again, and look jobs up; give the seconds."""
    with TemporaryDirectory(prefix="fsm-bench-") as folder:
        ledger = {"conn_type": "sqlite", "host": f"{folder}/ledger.db"}
        os.environ["AIRFLOW_CONN_LEDGER"] = json.dumps(ledger)
        connect("fsm", Service(port).url(0, 0), state_conn_id="ledger")
        return {
            "sent": _seconds_to_create(count, "created"),
            "again": _seconds_to_create(count, "existing"),
            "found": _seconds_to_find(count * _FACTOR),
        }


def _seconds_to_create(count: int, expected: str) -> float:
    from fsm_provider.operators.jobs import FsmCreateJobsOperator
    from tests.unit.state_store import TaskInstance

    jobs = [{"property_id": number, "job": pages.job_payload(number)} for number in range(count)]
    operator = FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id="bench",
        jobs=jobs,
        max_concurrency=_AT_ONCE,
    )
    start = time.perf_counter()
    outcomes = operator.execute({"ti": TaskInstance()})
    taken = time.perf_counter() - start
    came_out = [(outcome["jobID"], outcome["outcome"]) for outcome in outcomes]
    if came_out != [(pages.job_id(number), expected) for number in range(count)]:
        raise BenchmarkError(f"not all jobs are {expected}")
    return taken


def _seconds_to_find(count: int) -> float:
    """Give the longest of some look-ups of a job by its id, each in a transaction of its own."""
    from sqlalchemy import select

    from fsm_provider.api.digests import digest_for
    from fsm_provider.api.request import ApiRequest
    from fsm_provider.state.database import open_database
    from fsm_provider.state.schema import LEDGER
    from fsm_provider.state.task import Task
    from fsm_provider.writes.ledger import new_entry
    from fsm_provider.writes.sql_ledger import SqlLedger

    service = "https://many.example"
    task = Task("dag", "run", "task")
    service_id = digest_for(service)
    engine = open_database("ledger")
    ledger = SqlLedger(engine, "scope", service_id)
    entries = []
    for number in range(count):
        request = ApiRequest("POST", "/", body=str(number).encode())
        entry = new_entry(task, service, request, f"PO-{number}", "job")
        entries.append(replace(entry, state="done", result={"id": number}))
    ledger.plan(entries)
    taken: list[float] = []
    for number in random.Random(count).sample(range(count), _LOOK_UPS):
        start = time.perf_counter()
        is_its = (LEDGER.c.service_id == service_id) & (LEDGER.c.job_digest == digest_for(number))
        with engine.connect() as connection:
            key = connection.execute(select(LEDGER.c.key).where(is_its)).scalar()
        taken.append(time.perf_counter() - start)
        if key != f"PO-{number}":
            raise BenchmarkError(f"job {number} is that of {key}")
    engine.dispose()
    return max(taken)


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = f"{extent.rows:,} jobs, {_AT_ONCE} at once, responses at once, ledger in SQLite"
    sent = values_of(rounds, "rows", "sent")
    again = values_of(rounds, "rows", "again")
    section_of_look_ups = f"{extent.rows * _FACTOR:,} rows in SQLite"
    slowest = f"a job by its id: the slowest of {_LOOK_UPS}"
    milliseconds = [seconds * 1000 for seconds in values_of(rounds, "rows", "found")]
    return [
        Row(section, "wall", "s", sent, Goal(at_most=15)),
        Row(section, "asked again: wall", "s", again, Goal(at_most=3)),
        Row(section_of_look_ups, slowest, "ms", milliseconds, Goal(at_most=5)),
    ]
