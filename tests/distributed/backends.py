"""PostgreSQL, MariaDB and Redis from Debian's packages, on loopback for as long as a test needs them."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.local_airflow import free_port

PACKAGES = "apt-get install postgresql mariadb-server redis-server"
POSTGRESQL = Path("/usr/lib/postgresql")
USER = "postgres"
"""Who owns the cluster where this runs as root, whom PostgreSQL refuses."""
START_SECONDS = 30.0
STOP_SECONDS = 10.0


class MissingPackageError(Exception):
    """A program is not installed; the text says which package has it."""


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a cluster of its own, and give the URL of its database, without a scheme."""
    port = free_port()
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="fsm-postgresql-") as folder:
        if as_user:
            shutil.chown(folder, USER, USER)
        data = f"{folder}/data"
        initdb = [_find("initdb"), "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--no-locale"]
        subprocess.run([*as_user, *initdb, data], cwd=folder, check=True, capture_output=True)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "off",
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        server = [*as_user, _find("postgres"), "-D", data, *options]
        probe = [_find("pg_isready"), "--host=127.0.0.1", f"--port={port}"]
        # SIGINT ends sessions that are still open; SIGTERM would wait for them.
        with _running(server, probe, Path(folder), signal.SIGINT):
            yield f"{USER}@127.0.0.1:{port}/postgres"


@contextmanager
def mariadb() -> Iterator[int]:
    """Run a server of its own whose user root has no password, and give its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fsm-mariadb-") as folder:
        is_root = os.geteuid() == 0
        if is_root:
            shutil.chown(folder, "mysql", "mysql")
        user = ["--user=mysql"] if is_root else []
        data = [f"--datadir={folder}/data", "--no-defaults"]
        install = [
            _find("mariadb-install-db"),
            *data[::-1],
            *user,
            "--auth-root-authentication-method=normal",
        ]
        subprocess.run([*install, "--skip-test-db"], check=True, capture_output=True)
        socket = f"--socket={folder}/socket"
        server = [_find("mariadbd"), *data[::-1], *user, socket, "--bind-address=127.0.0.1", f"--port={port}"]
        probe = [_find("mariadb-admin"), "--no-defaults", socket, "ping"]
        with _running(server, probe, Path(folder), signal.SIGTERM):
            yield port


@contextmanager
def redis() -> Iterator[str]:
    """Run a server that keeps nothing on disk, and give its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fsm-redis-") as folder:
        server = [_find("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        probe = [_find("redis-cli"), "-h", "127.0.0.1", "-p", str(port), "ping"]
        with _running(server, probe, Path(folder), signal.SIGTERM):
            yield f"redis://127.0.0.1:{port}/0"


def _find(program: str) -> str:
    """Find a program on the path, or where Debian puts the newest PostgreSQL."""
    if found := shutil.which(program):
        return found
    versions = sorted(POSTGRESQL.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    if not versions:
        raise MissingPackageError(f"{program} is not installed; on Debian: {PACKAGES}")
    return str(versions[-1])


@contextmanager
def _running(
    command: list[str], probe: list[str], folder: Path, stop_signal: signal.Signals
) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        # A Ctrl-C is not for the server: whoever uses it stops first.
        server = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(probe, capture_output=True).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        server.send_signal(stop_signal)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
