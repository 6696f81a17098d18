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
from tests.unit.transfers.killed import started

KILLS = {"file": number_of_kills(20), "s3": number_of_kills(4)}
MOST = 100
"""Kills, if none before has met an export that writes."""
FORMS, PAGE = 1_200, 100
PAGES = FORMS // PAGE
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
        self.process = started(processes, FsmFormsToObjectStorageOperator, destination=str(path))

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
    chance, store = random.Random(SEED), storage.protocol or "file"
    service.settings.page_size = PAGE
    service.seed_forms(FORMS)
    connect(service)
    wanted = {}
    for format in FORMATS:
        Export(processes, storage / format / f"forms.{format}").finish()
        ((name, content),) = contents(storage / format).items()
        wanted[format] = content
        assert name == f"forms.{format}"

    killed = halfway = 0
    for number in range(MOST):
        if number >= KILLS[store] and killed and (halfway or store == "s3"):
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
            listed = 1 + number % KILLS[store] * PAGES // KILLS[store]  # early and late ones
            service.wait_for(lambda listed=listed: len(service.requests) >= listed, 60)
            killed += running.kill_after(chance.uniform(0, PAGE_SECONDS))
        found = contents(file.parent)
        assert found.pop(file.name) in (OLDER, wanted[format])
        assert all(name.startswith(".partial-") for name in found)
        halfway += len(found)
        assert not list(spool_folder.iterdir())

        Export(processes, file).finish()

        assert contents(file.parent) == {file.name: wanted[format]}
    print(f"{killed} were killed, {halfway} of them while they wrote")
    assert killed
    assert halfway or store == "s3"
