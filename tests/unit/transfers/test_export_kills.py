"""An export that is killed at any time and run again: every row once, and nothing half-written.

``FSM_KILLS_SEED`` repeats the random kills of a test that has failed; ``FSM_KILLS=few`` is for a
hurry.
"""

import random
import signal
from glob import glob

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.seeds import SEED, number_of_kills
from tests.unit.conftest import contents
from tests.unit.transfers.killed_process import start_process

KILLS = {"file": number_of_kills(20), "s3": number_of_kills(4)}
MOST = 100
"""Kills, if none before has met an export that writes."""
FORMS = 1_200
PAGE_SIZE = 100
PAGES = FORMS // PAGE_SIZE
FORMATS = ("jsonl", "csv", "parquet")
PAGE_SECONDS = 0.02
"""About as long as a page takes."""
WRITING_SECONDS = 0.003
"""About as long as the file is written to a disk."""
OLDER = b"an older export"


class Export:
    """An export in a process of its own."""

    def __init__(self, processes, path):
        self.folder = path.parent
        self.process = start_process(
            processes, FsmFormsToObjectStorageOperator, destination=str(path)
        )

    def finish(self):
        self.process.join()
        assert self.process.exitcode == 0

    def wait_until_it_writes(self):
        while self.process.is_alive() and not glob(f"{self.folder.path}/.partial-*/*"):  # noqa: PTH207
            pass  # a few milliseconds; Path.glob raises where the folder goes meanwhile

    def kill_after(self, seconds):
        """Return whether it was alive by then."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


def test_an_export_killed_at_random_times_and_run_again_is_complete(
    service, connect, storage, processes, spool_folder
):
    print(f"FSM_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    store = storage.protocol or "file"
    service.settings.page_size = PAGE_SIZE
    service.seed_forms(FORMS)
    connect(service)
    complete = {format: export_once(processes, storage, format) for format in FORMATS}

    killed = 0
    partial_files = 0
    for number in range(MOST):
        has_met_both = killed and (partial_files or store == "s3")
        if number >= KILLS[store] and has_met_both:
            break
        format = chance.choice(FORMATS)
        file = storage / f"{number}-{format}" / f"forms.{format}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(OLDER)
        service.clear_requests()

        running = Export(processes, file)
        if number % 2 and store == "file":
            running.wait_until_it_writes()
            killed += running.kill_after(chance.uniform(0, WRITING_SECONDS))
        else:
            wait_for_requests(service, 1 + number % KILLS[store] * PAGES // KILLS[store])
            killed += running.kill_after(chance.uniform(0, PAGE_SECONDS))

        files = contents(file.parent)
        assert files.pop(file.name) in (OLDER, complete[format])
        for name in files:
            assert name.startswith(".partial-")
        partial_files += len(files)
        assert not list(spool_folder.iterdir())

        Export(processes, file).finish()

        assert contents(file.parent) == {file.name: complete[format]}
    print(f"{killed} were killed, {partial_files} of them while they wrote")
    assert killed
    assert partial_files or store == "s3"


def export_once(processes, storage, format):
    """Export without a kill; return the content of the file."""
    Export(processes, storage / format / f"forms.{format}").finish()
    [(name, content)] = contents(storage / format).items()
    assert name == f"forms.{format}"
    return content


def wait_for_requests(service, count):
    """Wait for so many requests: few for an early kill, many for a late one."""
    service.wait_for(lambda: len(service.requests) >= count, 60)
