"""*Try it* of the README, word for word but for the port, as somebody types it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.newcomer.terminals import FAKE_URL, StaysUp, Terminal
from tests.pages import PAGES, ROOT, block_with
from tests.processes import inherited_environment
from tests.system.local_airflow import free_port

README = PAGES[0]


@pytest.fixture
def terminals(tmp_path: Path) -> list[Terminal]:
    """Two terminals, with the environment that *Install* makes and a home folder of their own."""
    home = tmp_path / "home"
    home.mkdir()
    env = inherited_environment() | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    port = free_port()
    real = {
        FAKE_URL: f"http://127.0.0.1:{port}",
        "fsm_provider fake": f"fsm_provider fake --port {port}",
    }
    return [Terminal(tmp_path / str(number), env, real) for number in range(2)]


@pytest.fixture
def fake(terminals: list[Terminal]) -> Iterator[StaysUp]:
    """The service of the first terminal."""
    running = terminals[0].start(block_with("fsm_provider fake", "bash", README))
    try:
        running.wait_until(lambda: "export" in running.output, 60, "the fake is up")
        yield running
    finally:
        running.kill()


def test_the_first_minute_of_the_readme(terminals: list[Terminal], fake: StaysUp) -> None:
    output = terminals[1].run(block_with("airflow dags test", "bash", README), cwd=ROOT)

    assert "state=success" in output or "state:success" in output, output
    assert fake.output.count("POST /properties/7/jobs 201") == 1
    assert "GET /forms 200" in fake.output
