"""The shell blocks of the pages are run as they stand, page by page, each page in one shell.

What stands for the reader's own service is a fake, and what stays up goes to the background. Of
``make``, which takes minutes, it is tried that the target is there, and of ``pip``, in
``tests/unit/test_docs.py``, that the extras are. An environment that a page makes is the one that
runs this. The quickstart is followed by ``tests/newcomer``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

import pytest

from fsm_provider.testing import FakeFieldService
from tests.pages import PAGES, ROOT, blocks
from tests.system.local_airflow import create_database, environment, free_port, kill_session
from tests.unit.plugins import signing

BASE_URL = "https://api.example.com/v1"
"""That of the reader's own service, as the pages write it."""
TOKEN = "<ACCESS_TOKEN>"
"""That of the reader's own service, as the pages write it."""
PREAMBLE = f"""\
set -euo pipefail
pip() {{ :; }}
python3() {{ mkdir -p "$3/bin" && touch "$3/bin/activate"; }}
make() {{ command make --dry-run --directory '{ROOT}' "$@" > /dev/null; }}
"""
FAKE = re.compile(r"^(python -m fsm_provider fake .*)$", re.MULTILINE)
COMMAND_SECONDS = 600.0


def pages_with_commands() -> Iterator[Path]:
    """Give the pages that have shell blocks, but for the quickstart."""
    for page in PAGES:
        has_commands = bool(blocks("bash", "console", pages=[page]))
        if has_commands and page.name != "quickstart.md":
            yield page


class Shell:
    """Runs the blocks of a page, and what they start, until it is closed."""

    def __init__(self, folder: Path, own: FakeFieldService) -> None:
        self.folder = folder
        self._fakes_port = free_port()
        self._own = own
        self._env = environment(folder / "dags", folder / "airflow", free_port())
        self._env["HOME"] = str(folder)
        self._env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        del self._env["AIRFLOW__CORE__DAGS_FOLDER"]
        del self._env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, script: str) -> None:
        """Run commands to their end; what stays up goes on in the background."""
        fakes_log = self.folder / "fake.log"
        waits = f" > {fakes_log} 2>&1 &\nuntil grep -q '^export' {fakes_log}; do sleep 0.5; done"
        script = FAKE.sub(rf"\1{waits}", script)
        own = {
            BASE_URL: self._own.base_url,
            quote(BASE_URL, safe=""): quote(self._own.base_url, safe=""),
            TOKEN: self._own.settings.token,
            "http://127.0.0.1:8400": f"http://127.0.0.1:{self._fakes_port}",
            "-m fsm_provider fake": f"-m fsm_provider fake --port {self._fakes_port}",
        }
        for shown, real in own.items():
            script = script.replace(shown, real)
        log = self.folder / "shell.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", PREAMBLE + script],
                env=self._env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        assert process.wait(COMMAND_SECONDS) == 0, log.read_text()

    def close(self) -> None:
        """End what still runs."""
        for process in self._running:
            kill_session(process)


def commands_for(page: Path) -> str:
    """Give the commands of a page's blocks, without prompts and output."""
    commands: list[str] = []
    for block in blocks("bash", "console", pages=[page]):
        if block.kind == "console":
            commands += re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
        else:
            commands.append(block.text)
    return "\n".join(commands)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of Airflow with nothing in it."""
    home = tmp_path_factory.mktemp("database")
    create_database(os.environ | {"AIRFLOW_HOME": str(home)})
    return home / "airflow.db"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shutil.copytree(ROOT / "example_dags", tmp_path / "example_dags")
    (tmp_path / "airflow" / "dags").mkdir(parents=True)
    shutil.copy(ROOT / "example_dags" / "quickstart.py", tmp_path / "airflow" / "dags")
    with FakeFieldService(token="own-token", page_size=20, page_size_param="limit") as own:
        own.seed_forms(120)
        running = Shell(tmp_path, own)
        yield running
        running.close()


@pytest.mark.parametrize("page", list(pages_with_commands()), ids=attrgetter("name"))
def test_the_commands_of_a_page_run(shell: Shell, page: Path, database: Path) -> None:
    shutil.copy(database, shell.folder / "airflow")
    delivery = b'{"type": "jobs.created"}'
    secret = signing.standard_secret()
    headers = signing.standard(secret, delivery)

    (shell.folder / "headers.txt").write_text(json.dumps(headers))
    (shell.folder / "body.bin").write_bytes(delivery)
    (shell.folder / "secret.txt").write_text(secret)

    shell.run(commands_for(page))
