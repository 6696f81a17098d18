"""Forms that a watcher emits, and sensors that wait for theirs: how to add them and see them
arrive.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.system.airflow_api import wait_until
from tests.system.dags.watched import POKE_INTERVAL, WAITS, WATCHED_NAME
from tests.system.local_airflow import LocalAirflow

DAG_ID = "watched_records"
WAITS_ID = "many_waits"
FIRST_JOBS_EVERY = 1000
job_ids = count(800_001, FIRST_JOBS_EVERY)


def emitted(airflow: LocalAirflow) -> list[list[int]]:
    """The forms of each run that the asset started, in order."""
    runs = airflow.runs(DAG_ID)
    return [forms_from_run(airflow, run["dag_run_id"]) for run in runs if run["state"] == "success"]


@cache
def forms_from_run(airflow: LocalAirflow, run_id: str) -> list[int]:
    return [form["id"] for form in airflow.xcom(DAG_ID, run_id, "read")]


def times_emitted(airflow: LocalAirflow, forms: Iterable[int]) -> dict[int, int]:
    seen = Counter(form for run in emitted(airflow) for form in run)
    return {form: seen[form] for form in forms}


def until_emitted(airflow: LocalAirflow, forms: Collection[int]) -> None:
    wait_until(lambda: all(times_emitted(airflow, forms).values()), f"a run has each of {forms}")


def add(service: FakeFieldService, how_many: int = 1) -> list[int]:
    return [service.add_form(form_name=WATCHED_NAME)["id"] for _ in range(how_many)]


def is_from_sensors(request: RecordedRequest) -> bool:
    """Whether a request to the watched service is from a deferred sensor."""
    return WAITS.items() <= dict(request.query).items()


def listings(service: FakeFieldService, start: int) -> list[RecordedRequest]:
    """The first page of each listing for sensors, from a request on."""
    requests = [request for request in service.requests[start:] if is_from_sensors(request)]
    return [request for request in requests if "cursor" not in dict(request.query)]


def are_one_a_poll(found: Sequence[RecordedRequest]) -> bool:
    """Whether there are no more listings than polls in the time they span: slow machines poll less."""
    span = (found[-1].at - found[0].at).total_seconds()
    return len(found) - 1 <= span / POKE_INTERVAL + 1


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

    def until_deferred(self) -> None:
        wait_until(lambda: self.states() == ["deferred"] * self.jobs, "all sensors are deferred")

    def complete(self, numbers: Iterable[int]) -> dict[int, int]:
        """Complete the forms that these sensors wait for."""
        return {
            number: self.service.add_form(job_id=self.first_job + number)["id"]
            for number in numbers
        }

    def until_found(self, forms: Mapping[int, int]) -> None:
        """Wait until these sensors have succeeded, each with its own form, and no other has."""

        def found() -> set[int]:
            states = self.states()
            assert "failed" not in states
            return {number for number, state in enumerate(states) if state == "success"}

        wait_until(lambda: forms.keys() <= found(), f"the sensors {[*forms]} have succeeded")
        for number, form in forms.items():
            (reference,) = self.airflow.xcom(WAITS_ID, self.run_id, "wait", map_index=number)
            assert reference["id"] == form
        self.done |= forms.keys()
        assert found() == self.done


def mismatches(airflow: LocalAirflow) -> int:
    """Count the sensors that were queued again before the scheduler had noticed the end of their
    process.
    """
    logs = [path.read_text() for path in airflow.home.glob("scheduler*.log")]
    mismatch = rf"\[error .*TaskInstance: {WAITS_ID}\.\S+ .*finished with state success, but"
    return sum(len(re.findall(mismatch, log)) for log in logs)
