"""A task killed at random times, and run again: every PDF once, complete, and nothing left behind."""

import random
from collections import Counter

from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.seeds import SEED, number_of_kills
from tests.unit.transfers.killed import started

AT_ONCE = 4
LATENCY = 0.01
AMOUNTS = {"file": (60, number_of_kills(20)), "s3": (12, 3)}
"""Forms and kills; the S3 of the tests takes its time."""


def pdfs_asked_for(service):
    return Counter(request.path for request in service.requests_to("GET", "/forms/*/pdf"))


def test_a_killed_task_that_runs_again_has_every_pdf_once(service, connect, stored, processes):
    print(f"FSM_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    connect(service)
    number_of_forms, kills = AMOUNTS["s3" if stored.folder.protocol == "s3" else "file"]
    service.seed_forms(number_of_forms)
    service.settings.latency = LATENCY
    service.settings.page_size = 100
    expected = {service.pdf(form["id"]) for form in service.forms}
    forms = [form["id"] for form in service.forms]

    def run(folder, *, kill_at=None):
        """Run the task, to its end or its kill soon after so many requests; give its exit code."""
        service.clear_requests()
        arguments = {"forms": forms, "max_concurrency": AT_ONCE, "destination": str(folder)}
        task = started(processes, FsmFormPdfsToObjectStorageOperator, **arguments)
        if kill_at is not None:
            service.wait_for(lambda: len(service.requests) >= kill_at, 60)
            task.join(chance.uniform(0, 3 * LATENCY))
            task.kill()
        task.join(60)
        return task.exitcode

    there = []
    root = stored.folder
    for number in range(kills):
        stored.folder = root / str(number)
        run(stored.folder, kill_at=1 + int(len(forms) * (number + chance.random()) / kills))
        first, asked = stored.files, pdfs_asked_for(service)
        complete = {
            name: content for name, content in first.items() if not name.startswith(".partial-")
        }
        assert set(complete.values()) <= expected
        there.append(len(complete))

        assert run(stored.folder) == 0

        files = stored.files
        assert set(files.values()) == expected
        assert len(files) == len(forms)
        again = pdfs_asked_for(service)
        assert len(again) == len(forms) - len(complete), "what was complete is not fetched again"
        # Those that the killed task had under way may be handled only now.
        assert again.total() <= len(again) + AT_ONCE
        assert len(asked.keys() & again.keys()) <= AT_ONCE
        assert not list(stored.folder.glob(".partial-*"))

    print(f"{kills} kills, with {sorted(there)} of {len(forms)} PDFs complete by then")
    assert len(set(there)) > 1, "the kills came at the same time"
