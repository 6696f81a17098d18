"""A newcomer: an empty folder, an environment with what the quickstart installs, three terminals.

The steps build on each other. Each is printed when it begins, since some take minutes.
"""

import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.narrator import Narrator
from tests.newcomer.mistakes import connections, dag_files
from tests.newcomer.newcomer import OWN_TOKEN, Newcomer, StandaloneApi
from tests.newcomer.terminals import FAKE_URL, Terminal, commands_by_step
from tests.pages import DOCS, PAGES, ROOT, block_with
from tests.processes import end_on_signals, inherited_environment
from tests.system.local_airflow import free_port

BASE_URL = "https://api.example.com/v1"
"""That of the reader's own service, as the pages write it."""
TOKEN = "<ACCESS_TOKEN>"
"""That of the reader's own service, as the pages write it."""
DESTINATION = "/data/gas_safety_records"
"""Of the DAG in README."""
AS_WRITTEN = "pip install --constraint constraints/airflow.txt"
"""How the quickstart installs."""
OLDER_AIRFLOW = "pip install --quiet uv && uv pip install apache-airflow==3.1.8"
"""How an older Airflow is installed here, without its constraint file, which is on no index.

pip would try versions for minutes.
"""
OWN_SERVICE = (
    f"python -m fsm_provider fake --port {{port}} --token {OWN_TOKEN} --form-after 5 "
    f"--page-size 20 --fail 'GET /jobs 403 always' --property 7 {'--form 7:Boiler ' * 30}"
)
"""Stands for the newcomer's own service: two pages of forms, one property; it refuses one path."""


def pytest_addoption(parser: pytest.Parser) -> None:
    purpose = "a home folder that the quickstart was installed in before"
    parser.addoption("--home", type=Path, help=purpose)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Print no dots: each step prints a line."""
    has_passed = report.passed and report.when == "call"
    return ("passed", "", "PASSED") if has_passed else None


@pytest.fixture(scope="session")
def say() -> Callable[[str, str], None]:
    """Print a line."""
    return Narrator().say


@pytest.fixture(scope="session")
def newcomer(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    say: Callable[[str, str], None],
) -> Iterator[Newcomer]:
    """A newcomer who has done step 1."""
    used: Path | None = request.config.getoption("--home")
    home = used.resolve() if used else tmp_path_factory.mktemp("home")
    scratch = tmp_path_factory.mktemp("terminals")
    with after_step_1(home, scratch, say, AS_WRITTEN, is_installed=used is not None) as person:
        yield person


@pytest.fixture
def with_older_airflow(
    tmp_path_factory: pytest.TempPathFactory, say: Callable[[str, str], None]
) -> Iterator[Newcomer]:
    """A newcomer who has installed Airflow 3.1.8, and then done step 3."""
    home = tmp_path_factory.mktemp("home")
    scratch = tmp_path_factory.mktemp("terminals")
    with after_step_1(home, scratch, say, OLDER_AIRFLOW) as person:
        connect(person)
        yield person


@contextmanager
def after_step_1(
    home: Path,
    scratch: Path,
    say: Callable[[str, str], None],
    install_by: str,
    *,
    is_installed: bool = False,
) -> Iterator[Newcomer]:
    """Give a newcomer who has done step 1, with what stands for its command that installs."""
    end_on_signals()
    steps = commands_by_step(DOCS / "quickstart.md")
    with ExitStack() as stack:
        log_ports = [_held_port(stack) for _ in range(2)]
        api_port = free_port()
        fake_port = free_port()
        fake_url = f"http://127.0.0.1:{fake_port}"
        own_url = f"http://127.0.0.1:{free_port()}"
        real = {
            FAKE_URL: fake_url,
            "fsm_provider fake --form": f"fsm_provider fake --port {fake_port} --form",
            BASE_URL: own_url,
            TOKEN: OWN_TOKEN,
            AS_WRITTEN: install_by,
        }
        env = _environment(home, scratch, api_port, log_ports)
        terminals = [Terminal(scratch / str(number), env, real) for number in range(4)]
        person = Newcomer(
            home=home,
            steps=steps,
            terminals=terminals,
            api=StandaloneApi(api_port, home / "fsm-quickstart"),
            fake_url=fake_url,
            own_url=own_url,
            say=say,
        )
        install, activate = steps[1]
        if not is_installed:
            say("step 1", "installing into an empty environment ...")
            terminals[0].run(install, cwd=ROOT)
            say("step 1", "installed")
        for terminal in terminals:
            terminal.run(activate)
        try:
            yield person
        finally:
            for started in reversed(person.running):
                started.kill()


def _held_port(stack: ExitStack) -> int:
    """Give a port that nobody else can listen on.

    Airflow's log servers would, on every interface.
    """
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


def _environment(home: Path, scratch: Path, api_port: int, log_ports: list[int]) -> dict[str, str]:
    """Give the environment of a new terminal: without what the tests or their users set up."""
    python3 = scratch / "bin" / "python3"
    python3.parent.mkdir()
    executable = Path(sys.executable).resolve()
    python3.write_text(f'#!/bin/sh\nexec {shlex.quote(str(executable))} "$@"\n')
    python3.chmod(0o755)
    inherited = inherited_environment()
    for name in list(inherited):
        if name.startswith("PYTHON") or name == "VIRTUAL_ENV":
            del inherited[name]
    own_home = Path.home()
    loopback = "127.0.0.1,localhost"
    return inherited | {
        "HOME": str(home),
        # Where packages come from, and those that were downloaded before.
        "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME", str(own_home / ".config")),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(own_home / ".cache")),
        "PATH": f"{python3.parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        # The output is in a file, which is read while it is written.
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api_port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{api_port}",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[0]),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[1]),
        # Files that are there do not change: they are not parsed over and over.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    }


@pytest.fixture(scope="session")
def connected(newcomer: Newcomer) -> Newcomer:
    """The newcomer after step 3."""
    connect(newcomer)
    return newcomer


def connect(newcomer: Newcomer) -> None:
    """Do the steps 2 and 3: the fake runs, and Airflow is connected to it."""
    newcomer.say("step 2", "starting the fake")
    fake = newcomer.start(0, newcomer.steps[2][0])
    fake.wait_until(lambda: "export" in fake.output, 60, "the fake prints its connection")
    quickstart = (DOCS / "quickstart.md").read_text()
    shown = re.findall(r"^export .*$", quickstart, re.MULTILINE)[0]
    assert shown.replace(FAKE_URL, newcomer.fake_url) in fake.output
    newcomer.say("step 3", "connecting Airflow")
    output = newcomer.terminals[1].run(newcomer.steps[3][0])
    last_line = output.rstrip().splitlines()[-1]
    assert last_line == "Connection success!", output


@pytest.fixture(scope="session")
def own(connected: Newcomer) -> Newcomer:
    """The newcomer after step 7, whose Airflow is connected to their own service.

    Among the DAGs are that of README and those with a mistake, whose runs have been started.
    """
    newcomer = connected
    newcomer.say("step 7", "connecting Airflow to another service")
    _, _, port = newcomer.own_url.rpartition(":")
    service = newcomer.start(3, OWN_SERVICE.format(port=port))
    service.wait_until(lambda: "export" in service.output, 60, "the service is up")
    probe, connection = newcomer.steps[7]
    code, output = newcomer.terminals[1].attempt(probe)
    # The forms of this service are all as old: what the probe cannot find out, it says, with exit
    # code 1.
    assert code == 1, output
    assert "Connection success!" in output
    assert "cursor_param is cursor" in output
    newcomer.terminals[1].run(connection)
    _write_dags(newcomer)
    exports: list[str] = []
    for name, text in connections(newcomer.own_url, OWN_TOKEN).items():
        variable = f"AIRFLOW_CONN_{name.upper()}"
        exports.append(f"export {variable}={shlex.quote(text)}")
    newcomer.terminals[1].run("\n".join(exports))
    newcomer.say("step 7", "starting Airflow again ...")
    newcomer.start_airflow("annual_gas_check")
    return newcomer


def _write_dags(newcomer: Newcomer) -> None:
    readme = PAGES[0]
    complete = block_with("@dag", "python", readme)
    assert DESTINATION in complete
    stored = str(newcomer.home / "stored")
    (newcomer.dags / "annual_gas_check.py").write_text(complete.replace(DESTINATION, stored))
    for name, text in dag_files().items():
        (newcomer.dags / f"{name}.py").write_text(text)
