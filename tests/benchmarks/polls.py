"""What one poll takes with very many waits: which of them a form concerns. No service, no triggerer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from fsm_provider.api.form_filter import FormFilter, FormReference
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.old_polls import PollResult
from fsm_provider.polling.shared_forms import SharedForms
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.results import Round, Row
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.unit.polling.references import DAY, NOON, reference

_NEW_FORMS = (10, 1000)
_POLLS = 9
_INTERVAL = 60.0


def measure(waits: int, new: int) -> dict[str, float]:
    """Give the milliseconds of the first poll of so many waits, and of one with so many new forms.

    Each form ends a wait, and another takes its place.
    """
    waiting = [_wait(job) for job in range(waits)]
    forms, seconds = SharedForms(waiting[0].wanted, _INTERVAL), 0.0
    for wait in waiting:
        forms.join(wait)

    def poll(references: list[FormReference]) -> float:
        nonlocal seconds
        seconds += _INTERVAL
        now = NOON + timedelta(seconds=seconds)
        result = PollResult(references=references, started=now, longest_page=100)
        began = time.perf_counter()
        alone = forms.plan(seconds, now)
        forms.next_query()
        done = [wait for wait in forms.ingest(result, seconds) if wait.forms()]
        for wait in done:
            forms.leave(wait)
        took = time.perf_counter() - began
        if alone or forms.has_more or len(done) != len(references):
            raise BenchmarkError(f"{len(done)} waits done by {len(references)} forms, {len(alone)} alone")
        for wait in done:
            forms.join(_wait(int(str(wait.wanted.job_id)) + waits))
        return took * 1000

    first = poll([])
    taken = []
    for number in range(_POLLS):
        numbers = range(number * new, (number + 1) * new)
        taken.append(poll([reference(one, job=one, created=NOON) for one in numbers]))
    return {"first": first, "new": sorted(taken)[_POLLS // 2]}


def _wait(job: int) -> FormWait:
    return FormWait(FormFilter(job_id=str(job), created_since=DAY), FormCriteria())


def _key(waits: int, new: int) -> str:
    return f"{waits} {new}"


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(_key(waits, new), "polls:measure", {"waits": waits, "new": new})
        for waits in extent.simulated
        for new in _NEW_FORMS
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    rows = []
    for waits in extent.simulated:
        section = f"one poll for {waits:,} waits, without the service and the triggerer"
        first = [one[_key(waits, _NEW_FORMS[0])]["first"] for one in rounds]
        rows += [
            Row(section, "the first, of all forms since their bound", "ms", first),
            *(
                Row(section, f"{new:,} new forms", "ms", [one[_key(waits, new)]["new"] for one in rounds])
                for new in _NEW_FORMS
            ),
        ]
    return rows


CASE = Case(_tasks, _rows)
