"""Forms that a watcher emits, and sensors that wait for theirs: to add them and see them arrive."""

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
    run_ids = airflow.succeeded_runs(DAG_ID)
    return [forms_from_run(airflow, run_id) for run_id in run_ids]


@cache
def forms_from_run(airflow: LocalAirflow, run_id: str) -> list[int]:
    forms = airflow.xcom(DAG_ID, run_id, "read")
    return [form["id"] for form in forms]


def times_emitted(airflow: LocalAirflow, forms: Iterable[int]) -> dict[int, int]:
    """Count in how many runs each of these forms has been."""
    times: Counter[int] = Counter()
    for forms_of_run in emitted(airflow):
        times.update(forms_of_run)
    return {form: times[form] for form in forms}


def until_emitted(airflow: LocalAirflow, forms: Collection[int]) -> None:
    def are_emitted() -> bool:
        times = times_emitted(airflow, forms)
        return all(times.values())

    wait_until(are_emitted, f"a run has each of {forms}")


def add_forms(service: FakeFieldService, how_many: int = 1) -> list[int]:
    """Complete forms that the watcher emits."""
    return [service.add_form(form_name=WATCHED_NAME)["id"] for _ in range(how_many)]


def is_from_sensors(request: RecordedRequest) -> bool:
    """Whether a request to the watched service is from a deferred sensor."""
    return WAITS.items() <= dict(request.query).items()


def listings(service: FakeFieldService, start: int) -> list[RecordedRequest]:
    """The first page of each listing for sensors, from a request on."""
    first_pages: list[RecordedRequest] = []
    for request in service.requests[start:]:
        is_first_page = "cursor" not in dict(request.query)
        if is_first_page and is_from_sensors(request):
            first_pages.append(request)
    return first_pages


def are_one_a_poll(requests: Sequence[RecordedRequest]) -> bool:
    """Whether there are no more listings than polls in the time they span.

    There may be fewer: slow machines poll less.
    """
    span = (requests[-1].at - requests[0].at).total_seconds()
    return len(requests) - 1 <= span / POKE_INTERVAL + 1


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
        def are_deferred() -> bool:
            return self.states() == ["deferred"] * self.jobs

        wait_until(are_deferred, "all sensors are deferred")

    def complete(self, numbers: Iterable[int]) -> dict[int, int]:
        """Complete the forms that these sensors wait for."""
        forms: dict[int, int] = {}
        for number in numbers:
            form = self.service.add_form(job_id=self.first_job + number)
            forms[number] = form["id"]
        return forms

    def until_found(self, forms: Mapping[int, int]) -> None:
        """Wait until these sensors have succeeded, each with its own form, and no other has."""

        def have_succeeded() -> bool:
            return forms.keys() <= self._succeeded()

        wait_until(have_succeeded, f"the sensors {[*forms]} have succeeded")
        for number, form in forms.items():
            (reference,) = self.airflow.xcom(WAITS_ID, self.run_id, "wait", map_index=number)
            assert reference["id"] == form
        self.done |= forms.keys()
        assert self._succeeded() == self.done

    def _succeeded(self) -> set[int]:
        """Give the sensors that have succeeded; none may have failed."""
        succeeded: set[int] = set()
        for number, state in enumerate(self.states()):
            assert state != "failed"
            if state == "success":
                succeeded.add(number)
        return succeeded


def mismatches(airflow: LocalAirflow) -> int:
    """Count the sensors that were queued again before the end of their process was noticed."""
    mismatch = rf"\[error .*TaskInstance: {WAITS_ID}\.\S+ .*finished with state success, but"
    count = 0
    for log in airflow.home.glob("scheduler*.log"):
        count += len(re.findall(mismatch, log.read_text()))
    return count
