"""PostgreSQL, MariaDB and Redis from Debian's packages, on loopback, while a test needs them."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.system.local_airflow import free_port

PACKAGES = "apt-get install postgresql mariadb-server redis-server"
POSTGRESQL = Path("/usr/lib/postgresql")
USER = "postgres"
"""Who owns the cluster where this runs as root, whom PostgreSQL refuses."""
START_SECONDS = 30.0
STOP_SECONDS = 10.0


class MissingPackageError(Exception):
    """A program is not installed; the text says which package has it."""


class Server:
    """A program in the background.

    :param url: where it listens.
    :param probe: a command that succeeds once it does.
    """

    def __init__(
        self,
        url: str,
        command: list[str],
        probe: list[str],
        folder: Path,
        stop_signal: signal.Signals,
    ) -> None:
        self.url = url
        self._command = command
        self._probe = probe
        self._folder = folder
        self._stop_signal = stop_signal

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, also again, and wait until it listens."""
        log = self._folder / "log"
        with log.open("ab") as output:
            # A Ctrl-C is not for the server: whoever uses it stops first.
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._is_listening():
                has_ended = self._process.poll() is not None
                if has_ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self._command[0]} did not start:\n{log.read_text()}")
                time.sleep(0.1)
        except BaseException:
            self.stop()
            raise

    def _is_listening(self) -> bool:
        probe = subprocess.run(self._probe, capture_output=True)
        return probe.returncode == 0

    def stop(self, stop_signal: signal.Signals | None = None) -> None:
        """Stop it, by the signal that it has for that or another one."""
        self._process.send_signal(stop_signal or self._stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def postgresql(*, sync: bool = False) -> Iterator[str]:
    """Run a cluster of its own, and give the URL of its database, without a scheme.

    :param sync: whether it waits for its disk, as it does by default.
    """
    with postgresql_server(sync=sync) as server:
        yield server.url


@contextmanager
def postgresql_server(*, sync: bool = False) -> Iterator[Server]:
    """Run a cluster of its own; the URL is that of its database, without a scheme."""
    port = free_port()
    is_root = os.geteuid() == 0
    as_user: list[str] = []
    if is_root:
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
    with tempfile.TemporaryDirectory(prefix="fsm-postgresql-") as folder:
        if is_root:
            shutil.chown(folder, USER, USER)
        data = f"{folder}/data"
        initdb = [
            _find("initdb"),
            "--auth=trust",
            f"--username={USER}",
            "--encoding=UTF8",
            "--no-locale",
        ]
        subprocess.run([*as_user, *initdb, data], cwd=folder, check=True, capture_output=True)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "on" if sync else "off",
        }
        options: list[str] = []
        for name, value in settings.items():
            options += ["-c", f"{name}={value}"]
        server = [*as_user, _find("postgres"), "-D", data, *options]
        probe = [_find("pg_isready"), "--host=127.0.0.1", f"--port={port}"]
        # SIGINT ends sessions that are still open; SIGTERM would wait for them.
        url = f"{USER}@127.0.0.1:{port}/postgres"
        with Server(url, server, probe, Path(folder), signal.SIGINT) as running:
            yield running


@contextmanager
def mariadb() -> Iterator[int]:
    """Run a server of its own whose user root has no password, and give its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fsm-mariadb-") as folder:
        is_root = os.geteuid() == 0
        if is_root:
            shutil.chown(folder, "mysql", "mysql")
        user = ["--user=mysql"] if is_root else []
        data = ["--no-defaults", f"--datadir={folder}/data"]
        install = [
            _find("mariadb-install-db"),
            *data,
            *user,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run(install, check=True, capture_output=True)
        socket = f"--socket={folder}/socket"
        server = [
            _find("mariadbd"),
            *data,
            *user,
            socket,
            "--bind-address=127.0.0.1",
            f"--port={port}",
        ]
        probe = [_find("mariadb-admin"), "--no-defaults", socket, "ping"]
        with Server(f"127.0.0.1:{port}", server, probe, Path(folder), signal.SIGTERM):
            yield port


@contextmanager
def redis() -> Iterator[str]:
    """Run a server that keeps nothing on disk, and give its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fsm-redis-") as folder:
        server = [_find("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        probe = [_find("redis-cli"), "-h", "127.0.0.1", "-p", str(port), "ping"]
        url = f"redis://127.0.0.1:{port}/0"
        with Server(url, server, probe, Path(folder), signal.SIGTERM):
            yield url


def missing(program: str) -> str:
    """Say that a program is not installed; nothing if it is."""
    try:
        _find(program)
    except MissingPackageError as error:
        return str(error)
    return ""


def _find(program: str) -> str:
    """Find a program on the path, or where Debian puts the newest PostgreSQL."""
    on_path = shutil.which(program)
    if on_path:
        return on_path
    installed = list(POSTGRESQL.glob(f"*/bin/{program}"))
    if not installed:
        raise MissingPackageError(f"{program} is not installed; on Debian: {PACKAGES}")
    newest = max(installed, key=_version_of_postgresql)
    return str(newest)


def _version_of_postgresql(program: Path) -> float:
    """Give the version of a program: its path is .../VERSION/bin/PROGRAM."""
    return float(program.parts[-3])
