"""A newcomer, and what they have in front of them."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.newcomer.terminals import StaysUp, Terminal
from tests.system.airflow_api import AirflowApi, LocalAirflowError, wait_until

OWN_TOKEN = "canary-7e1f40d2-token"
"""That of the newcomer's own service."""
START_SECONDS = 240.0


class StandaloneApi(AirflowApi):
    """The API of ``airflow standalone``, with the password that it has made."""

    def __init__(self, port: int, airflow_home: Path) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self._passwords = airflow_home / "simple_auth_manager_passwords.json.generated"

    @property
    def password(self) -> str:
        passwords = json.loads(self._passwords.read_text())
        return str(passwords["admin"])

    def _log_in(self) -> None:
        if "Authorization" in self._session.headers:
            return
        account = {"username": "admin", "password": self.password}
        response = self._session.post(f"{self.base_url}/auth/token", json=account, timeout=30)
        response.raise_for_status()
        token = response.json()["access_token"]
        self._session.headers["Authorization"] = f"Bearer {token}"

    def wait_for_dag(self, dag_id: str) -> None:
        # Others do fail to import here.
        wait_until(lambda: self._has_dag(dag_id), f"Airflow lists {dag_id}")


@dataclass
class Newcomer:
    """What the newcomer has in front of them."""

    home: Path
    steps: dict[int, list[str]]
    terminals: list[Terminal]
    api: StandaloneApi
    fake_url: str
    own_url: str
    say: Callable[[str, str], None]
    running: list[StaysUp] = field(default_factory=list)

    @property
    def dags(self) -> Path:
        return self.home / "fsm-quickstart" / "dags"

    def start(self, terminal: int, command: str) -> StaysUp:
        """Start what stays up in a terminal."""
        started = self.terminals[terminal].start(command)
        self.running.append(started)
        return started

    def start_airflow(self, dag_id: str) -> StaysUp:
        """Start Airflow in the second terminal, as step 5 says, and wait until it lists a DAG."""
        (command, _) = self.steps[5]
        standalone = self.start(1, command)

        def lists_it() -> bool:
            with suppress(requests.RequestException, LocalAirflowError, FileNotFoundError):
                return self.api._has_dag(dag_id)
            return False

        standalone.wait_until(lists_it, START_SECONDS, f"Airflow lists {dag_id}")
        return standalone
