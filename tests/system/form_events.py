"""Forms that a watcher tells of, and sensors that wait for theirs: how to add them and see them arrive."""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import count

import pytest

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.system.dags.watched import WATCHED_NAME
from tests.system.local_airflow import LocalAirflow

DAG_ID = "watched_records"
WAITS_ID = "many_waits"
FIRST_JOBS_EVERY = 1000
job_ids = count(800_001, FIRST_JOBS_EVERY)


def told(airflow: LocalAirflow, dag_id: str = DAG_ID) -> list[list[int]]:
    """The forms of each run that the asset started, in order."""
    path = f"/dags/{dag_id}/dagRuns"
    runs = airflow.api("GET", path, params={"limit": 100, "order_by": "run_after"})["dag_runs"]
    return [forms_of(airflow, dag_id, run["dag_run_id"]) for run in runs if run["state"] == "success"]


@cache
def forms_of(airflow: LocalAirflow, dag_id: str, run_id: str) -> list[int]:
    return [form["id"] for form in airflow.xcom(dag_id, run_id, "read")]


def times_told(airflow: LocalAirflow, forms: Iterable[int], dag_id: str = DAG_ID) -> dict[int, int]:
    seen = Counter(form for run in told(airflow, dag_id) for form in run)
    return {form: seen[form] for form in forms}


def until_told(airflow: LocalAirflow, forms: Collection[int], dag_id: str = DAG_ID) -> None:
    until(lambda: all(times_told(airflow, forms, dag_id).values()))


def add(service: FakeFieldService, how_many: int = 1, at: datetime | None = None) -> list[int]:
    return [service.add_form(form_name=WATCHED_NAME, created=at)["id"] for _ in range(how_many)]


def until(predicate: Callable[[], bool], timeout: float = 300.0) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            pytest.fail(f"not the case after {timeout:g} s")
        time.sleep(0.5)


def sweeps(service: FakeFieldService, more: int = 3) -> None:
    """Wait until the watcher has swept again."""
    seen = len(service.requests)
    service.wait_for(lambda: len(service.requests) >= seen + more, timeout=120)


def runs(airflow: LocalAirflow, dag_id: str = DAG_ID) -> int:
    return int(airflow.api("GET", f"/dags/{dag_id}/dagRuns")["total_entries"])


def is_of_sensors(request: RecordedRequest) -> bool:
    return "createdOnDateTime[gte]" in dict(request.query)


@dataclass
class Waits:
    """Deferred sensors of one run, numbered from 0, each for a form of a job of its own."""

    airflow: LocalAirflow
    service: FakeFieldService
    run_id: str
    first_job: int
    jobs: int
    done: set[int] = field(default_factory=set)

    @classmethod
    def start(cls, airflow: LocalAirflow, service: FakeFieldService, jobs: int) -> "Waits":
        first = next(job_ids)
        run_id = airflow.trigger(WAITS_ID, {"first_job_id": first, "jobs": jobs})
        return cls(airflow, service, run_id, first, jobs)

    def states(self) -> list[str | None]:
        states = self.airflow.task_states(WAITS_ID, self.run_id)
        return [states.get(f"wait[{number}]") for number in range(self.jobs)]

    def until_deferred(self, found: int = 0) -> None:
        """Wait until all sensors are deferred but the first, who have found their forms."""
        expected = ["success"] * found + ["deferred"] * (self.jobs - found)
        until(lambda: self.states() == expected, timeout=900)

    def complete(self, numbers: Iterable[int]) -> dict[int, int]:
        """Complete the forms that these sensors wait for."""
        return {number: self.service.add_form(job_id=self.first_job + number)["id"] for number in numbers}

    def until_found(self, forms: Mapping[int, int]) -> None:
        """Wait until these sensors have succeeded, each with its own form, and no other has."""

        def found() -> set[int]:
            states = self.states()
            assert "failed" not in states
            return {number for number, state in enumerate(states) if state == "success"}

        until(lambda: forms.keys() <= found())
        for number, form in forms.items():
            (reference,) = self.airflow.xcom(WAITS_ID, self.run_id, "wait", map_index=number)
            assert reference["id"] == form
        self.done |= forms.keys()
        assert found() == self.done


def mismatches(airflow: LocalAirflow) -> int:
    """Tasks that came back from the triggerer before the scheduler had noted that they left."""
    logs = [path.read_text() for path in airflow.home.glob("scheduler*.log")]
    return sum(len(re.findall(r"\[error .*finished with state success, but", log)) for log in logs)
