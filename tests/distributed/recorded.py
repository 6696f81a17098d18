"""What was seen of jobs in a cluster, as :mod:`tests.history` takes it."""

import os
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from unittest.mock import patch

from fsm_provider.writes.admin import open_ledgers
from tests.history import Event
from tests.system.kills import Report, Run, Stage


def of_service(stage: Stage, runs: Iterable[Run]) -> Iterator[Event]:
    """Give what the service did for each request of some runs."""
    references = _references(runs)
    for event in list(stage.killer.history):
        if event.key in references:
            yield event


def of_tasks(stage: Stage, runs: Iterable[Run], reports: Iterable[Report]) -> Iterator[Event]:
    """Give what the last attempt of each run's task said, some time between its start and end."""
    for run, report in zip(runs, reports, strict=True):
        task = stage.task(run)
        begin = datetime.fromisoformat(task["start_date"]).timestamp()
        end = datetime.fromisoformat(task["end_date"]).timestamp()
        for outcome in report.result or []:
            yield Event(
                key=outcome["customerReference"],
                who="task",
                what=outcome["outcome"],
                job_id=outcome["jobID"],
                begin=begin,
                end=end,
            )


def of_ledger(stage: Stage, runs: Iterable[Run], fsm_conn_id: str) -> Iterator[Event]:
    """Give what a ledger in a database holds of some runs now."""
    references = _references(runs)
    now = time.time()
    with patch.dict(os.environ, stage.airflow.env), open_ledgers(fsm_conn_id) as ledgers:
        for _, entry in ledgers.entries():
            if entry.reference in references:
                yield Event(
                    key=entry.reference,
                    who="ledger",
                    what=entry.state,
                    job_id=entry.result_id,
                    begin=now,
                    end=now,
                )


def _references(runs: Iterable[Run]) -> Collection[str]:
    references: set[str] = set()
    for run in runs:
        references.update(run.references)
    return references
