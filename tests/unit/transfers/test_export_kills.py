"""An export that is killed at any time and run again: every row once, and nothing half-written.

``FSM_KILLS_SEED`` repeats the random kills of a test that has failed.
"""

import json
import os
import random
import signal
import time

from fsspec.core import url_to_fs

from tests.seeds import SEED
from tests.unit.transfers.exporting import export

KILLS = {"file": 20, "s3": 4}
FORMS = 1_200
PROPERTIES = {"file": 30, "s3": 5}
FORMATS = ("jsonl", "csv", "parquet")
WRITING_SECONDS = 0.05
"""About as long as the files are written to a disk."""


class Export:
    """An export in a process of its own."""

    def __init__(self, processes, folder, format):
        self.folder = folder
        options = {"format": format, "partition_by": "property"}
        self.process = processes.Process(target=export, args=(dict(os.environ), str(folder), options))
        self.process.start()

    def finish(self):
        self.process.join()
        assert self.process.exitcode == 0

    def wait_for(self, name):
        while self.process.is_alive() and not (self.folder / name).exists():
            time.sleep(0.001)

    def kill_after(self, seconds):
        """Return whether it was alive by then."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


def contents(folder):
    """Read what is there, without what this process remembers of it: others write there."""
    files, root = url_to_fs(str(folder), skip_instance_cache=True, use_listings_cache=False)
    return {path.removeprefix(f"{root}/"): files.cat_file(path) for path in files.find(root)}


def test_an_export_killed_at_random_times_and_run_again_is_complete(
    service, connect, storage, processes, spool_folder
):
    print(f"FSM_KILLS_SEED={SEED}")
    chance, store = random.Random(SEED), storage.protocol or "file"
    properties = PROPERTIES[store]
    service.settings.page_size = 100
    service.seed_forms(FORMS, property_ids=range(properties))
    connect(service)
    wanted, seconds = {}, {}
    for format in FORMATS:
        for _ in range(2):  # the first one starts the process that the others are forked off
            began = time.monotonic()
            Export(processes, storage / format, format).finish()
            seconds[format] = time.monotonic() - began
        wanted[format] = contents(storage / format)
        manifest = json.loads(wanted[format]["_manifest.json"])
        assert (manifest["rows"], len(manifest["files"])) == (FORMS, properties)

    killed = halfway = 0
    for number in range(KILLS[store]):
        format = chance.choice(FORMATS)
        folder = storage / f"{number}-{format}"
        running = Export(processes, folder, format)
        if number % 2:
            running.wait_for("_writing.json")
            killed += running.kill_after(chance.uniform(0, WRITING_SECONDS))
        else:
            killed += running.kill_after(chance.uniform(0, seconds[format]))
        found = contents(folder)
        data = {name: content for name, content in found.items() if name[0] not in "._"}
        halfway += 0 < len(data) < properties
        assert data.items() <= wanted[format].items()
        assert "_manifest.json" not in found or len(data) == properties
        assert not list(spool_folder.iterdir())

        Export(processes, folder, format).finish()

        assert contents(folder) == wanted[format]
    print(f"{killed} were killed, {halfway} of them while they wrote")
    assert killed
