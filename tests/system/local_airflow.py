"""A real Airflow on this machine for as long as a test or the demo needs it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import requests

from tests.capabilities import IS_AIRFLOW_3
from tests.processes import inherited_environment
from tests.system.airflow_api import HEALTH, POLL_SECONDS, AirflowApi, LocalAirflowError

AIRFLOW = str(Path(sys.executable).with_name("airflow"))
SERVER = "api-server" if IS_AIRFLOW_3 else "webserver"
COMMANDS: dict[str, tuple[str, ...]] = {
    SERVER: (SERVER,),
    # The two log servers would listen on every interface. The API server reads the same files.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
if not IS_AIRFLOW_3:
    # With SQLite, the scheduler of Airflow 2 is its own.
    del COMMANDS["dag-processor"]
PRELOAD = """\
from contextlib import suppress
with suppress(ImportError):
    import airflow.providers.amazon.aws.hooks.s3
with suppress(ImportError):
    import airflow.providers.openlineage.plugins.openlineage
"""
"""Airflow's settings here.

A process that makes any asset loads what providers know of asset URIs, and each task loads plugins;
with the Amazon and OpenLineage providers that takes most of a second: here once, before tasks are
forked.
"""
EVERYBODY_IS_ADMIN = "AUTH_ROLE_PUBLIC = 'Admin'\n"
"""The settings of Airflow 2's webserver."""
BOOT_SECONDS = 300.0
STOP_SECONDS = 10.0


class LocalAirflow(AirflowApi):
    """Runs API server, scheduler, DAG processor and triggerer as four child processes.

    In Airflow 2 there is a webserver, and no DAG processor.

    :param dags_folder: the folder whose DAGs are parsed
    :param home: an empty folder for the database, the task logs and the log of each process
    :param env: extra environment, such as ``AIRFLOW_CONN_FSM_DEFAULT``; nothing named
        ``AIRFLOW*`` is inherited from the caller
    """

    def __init__(self, dags_folder: Path, home: Path, env: Mapping[str, str] | None = None) -> None:
        self.home = home.resolve()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.env = environment(dags_folder.resolve(), self.home, port)
        self.env.update(env or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create the database, start the four processes and wait until all are healthy."""
        config = self.home / "config"
        config.mkdir(parents=True, exist_ok=True)
        (config / "airflow_local_settings.py").write_text(PRELOAD)
        (self.home / "webserver_config.py").write_text(EVERYBODY_IS_ADMIN)
        try:
            create_database(self.env)
            self._bring_up(*COMMANDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every process; calling it again does nothing."""
        self._session.close()
        processes = self.processes
        self.processes = {}
        # The others end at once while there is an API server to report to, and retry without.
        server = processes.pop(SERVER, None)
        try:
            self._terminate(list(processes.values()))
        finally:
            if server is not None:
                self._terminate([server])

    def kill(self, name: str) -> None:
        """End one process and all it started with SIGKILL, as if its machine had died."""
        kill_session(self.processes.pop(name))

    def name_for(self, pid: int) -> str:
        """Name the process that this one is, or was started by."""
        session = os.getsid(pid)
        names = {process.pid: name for name, process in self.processes.items()}
        return names[session]

    def restart(self, name: str) -> None:
        """Start one process again, which was killed."""
        self._bring_up(name)

    def start_another(self, kind: str, name: str) -> None:
        """Start one more process of a kind, under a name of its own for :meth:`kill`."""
        self._wait_for_start(name, self._launch_another(kind, name))

    def _launch(self, name: str, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with self._log_path(name).open("ab") as log:
            return subprocess.Popen(
                [AIRFLOW, *arguments],
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _launch_another(self, kind: str, name: str) -> Callable[[], bool]:
        """Launch a process, and return a function that checks whether it has started."""
        started_now = {
            "job_type": f"{kind.title()}Job",
            "start_date_gte": datetime.now(UTC).isoformat(),
        }
        self.processes[name] = self._launch(name, COMMANDS[kind])

        def has_started() -> bool:
            jobs = self.api("GET", "/jobs", params=started_now)
            return bool(jobs["total_entries"])

        return has_started

    def _wait_for_start(self, name: str, has_started: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while not has_started():
            has_ended = self.processes[name].poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise LocalAirflowError(f"{name} did not start:\n{self._tail(name)}")
            time.sleep(POLL_SECONDS)

    def _bring_up(self, *names: str) -> None:
        since = datetime.now(UTC)
        for name in names:
            self.processes[name] = self._launch(name, COMMANDS[name])
        waiting: set[str] = set(names)
        deadline = time.monotonic() + BOOT_SECONDS
        while waiting:
            for name in names:
                self._check_is_running(name)
            if time.monotonic() > deadline:
                tails = [f"--- {name}\n{self._tail(name)}" for name in sorted(waiting)]
                logs = "\n".join(tails)
                raise LocalAirflowError(f"not healthy after {BOOT_SECONDS:.0f} s:\n{logs}")
            waiting -= self._healthy(since)
            if waiting:
                time.sleep(POLL_SECONDS)

    def _check_is_running(self, name: str) -> None:
        code = self.processes[name].poll()
        if code is not None:
            tail = self._tail(name)
            raise LocalAirflowError(f"airflow {name} ended with code {code}:\n{tail}")

    def _healthy(self, since: datetime) -> set[str]:
        """Which processes have shown life since the given time."""
        try:
            response = self._session.get(f"{self.base_url}{HEALTH}", timeout=10)
        except (requests.ConnectionError, requests.Timeout):
            return set()
        if not response.ok:
            return set()
        healthy = {SERVER}
        for component, health in response.json().items():
            heartbeat = health.get(f"latest_{component}_heartbeat")
            is_alive = heartbeat and datetime.fromisoformat(heartbeat) >= since
            if is_alive:
                healthy.add(component.replace("_", "-"))
        return healthy

    def _terminate(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """SIGTERM all at once; whatever is left at the deadline, or on Ctrl-C, gets SIGKILL."""
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                seconds_left = max(0.0, deadline - time.monotonic())
                with suppress(subprocess.TimeoutExpired):
                    process.wait(seconds_left)
        finally:
            for process in processes:
                kill_session(process)

    def _log_path(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _tail(self, name: str, lines: int = 30) -> str:
        text = self._log_path(name).read_text(errors="replace")
        last_lines = text.splitlines()[-lines:]
        return "\n".join(last_lines)


def free_port() -> int:
    """Draw a port that nothing listens on, below those the system gives to outgoing connections."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def create_database(env: Mapping[str, str]) -> None:
    """Create the database of the Airflow that this environment is of."""
    done = subprocess.run(
        [AIRFLOW, "db", "migrate"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOOT_SECONDS,
    )
    if done.returncode:
        raise LocalAirflowError(f"airflow db migrate failed:\n{done.stdout}{done.stderr}")


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL whatever is left of the session that the process leads, and reap the leader.

    A running task has a process group of its own, so the group alone would miss it.
    """
    while True:
        members = _processes_in(leader.pid)
        if not members:
            break
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leader.poll()
        time.sleep(0.01)
    leader.wait()


def _processes_in(session: int) -> list[int]:
    members: list[int] = []
    for pid in psutil.pids():
        is_member = _is_alive_in(session, pid)
        if is_member:
            members.append(pid)
    return members


def _is_alive_in(session: int, pid: int) -> bool:
    try:
        if os.getsid(pid) != session:
            return False
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


def environment(dags_folder: Path, home: Path, port: int) -> dict[str, str]:
    """Make the environment of an Airflow's processes."""
    base_url = f"http://127.0.0.1:{port}"
    loopback = "127.0.0.1,localhost"
    env = inherited_environment()
    if not IS_AIRFLOW_3:
        env |= _settings_of_airflow_2(base_url, port)
    return env | {
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # With SQLite Airflow 2 has no other.
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor" if IS_AIRFLOW_3 else "SequentialExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__FERNET_KEY": "bG9jYWwtYWlyZmxvdy1mb3ItdGVzdHMtb25seS0xMjM=",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base_url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base_url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": "local-airflow-for-tests-only",
        "AIRFLOW__API_AUTH__JWT_SECRET": "local-airflow-for-tests-only-" * 3,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        # A file that has changed is parsed at once.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        # No log server runs here; nobody must ask one that another Airflow left on the default.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "1",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "1",
    }


def _settings_of_airflow_2(base_url: str, port: int) -> dict[str, str]:
    return {
        # Its executor finds "airflow" there.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW__API__AUTH_BACKENDS": "airflow.api.auth.backend.default",
        "AIRFLOW__SCHEDULER__MIN_FILE_PROCESS_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__DAG_DIR_LIST_INTERVAL": "5",
        "AIRFLOW__WEBSERVER__WEB_SERVER_HOST": "127.0.0.1",
        "AIRFLOW__WEBSERVER__WEB_SERVER_PORT": str(port),
        "AIRFLOW__WEBSERVER__BASE_URL": base_url,
        "AIRFLOW__WEBSERVER__WORKERS": "1",
        "AIRFLOW__WEBSERVER__SECRET_KEY": "local-airflow-for-tests-only",
    }
