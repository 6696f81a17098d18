"""A task killed at random times, and run again: every PDF once, complete, and nothing left."""

import random
from collections import Counter

from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.seeds import SEED, number_of_kills
from tests.unit.transfers.killed_process import start_process

AT_ONCE = 4
LATENCY = 0.01
AMOUNTS = {"file": (60, number_of_kills(20)), "s3": (12, 3)}
"""Forms and kills; the S3 of the tests takes its time."""


def requested_pdfs(service):
    """Count the requests of each PDF."""
    return Counter(request.path for request in service.requests_to("GET", "/forms/*/pdf"))


def complete_files(files):
    return {name: content for name, content in files.items() if not name.startswith(".partial-")}


def test_a_killed_task_that_runs_again_has_every_pdf_once(service, connect, stored, processes):
    print(f"FSM_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    connect(service)
    number_of_forms, kills = AMOUNTS["s3" if stored.folder.protocol == "s3" else "file"]
    service.seed_forms(number_of_forms)
    service.settings.latency = LATENCY
    service.settings.page_size = 100
    forms = [form["id"] for form in service.forms]
    expected = {service.pdf(form_id) for form_id in forms}

    def run(folder, *, kill_at=None):
        """Run the task to its end, or kill it after so many requests; return its exit code."""
        service.clear_requests()
        task = start_process(
            processes,
            FsmFormPdfsToObjectStorageOperator,
            forms=forms,
            max_concurrency=AT_ONCE,
            destination=str(folder),
        )
        if kill_at is not None:
            service.wait_for(lambda: len(service.requests) >= kill_at, 60)
            task.join(chance.uniform(0, 3 * LATENCY))
            task.kill()
        task.join(60)
        return task.exitcode

    numbers_of_complete_files = []
    root = stored.folder
    for number in range(kills):
        stored.folder = root / str(number)
        run(stored.folder, kill_at=1 + int(len(forms) * (number + chance.random()) / kills))
        complete = complete_files(stored.files)
        requested_before = requested_pdfs(service)
        assert set(complete.values()) <= expected
        numbers_of_complete_files.append(len(complete))

        assert run(stored.folder) == 0

        files = stored.files
        assert set(files.values()) == expected
        assert len(files) == len(forms)
        requested_again = requested_pdfs(service)
        missing = len(forms) - len(complete)
        assert len(requested_again) == missing, "what was complete is not fetched again"
        # Those that the killed task had under way may be handled only now.
        assert requested_again.total() <= len(requested_again) + AT_ONCE
        assert len(requested_before.keys() & requested_again.keys()) <= AT_ONCE
        assert not list(stored.folder.glob(".partial-*"))

    numbers = sorted(numbers_of_complete_files)
    print(f"{kills} kills, with {numbers} of {len(forms)} PDFs complete by then")
    assert len(set(numbers)) > 1, "the kills came at the same time"
