"""Airflow's REST API, as far as the system tests and the demo use it."""

import ast
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import requests

from tests.capabilities import IS_AIRFLOW_3

ROOT = "/api/v2" if IS_AIRFLOW_3 else "/api/v1"
HEALTH = f"{ROOT}/monitor/health" if IS_AIRFLOW_3 else f"{ROOT}/health"
REPEATED_LOG_FIELDS = frozenset(
    {
        "timestamp",
        "level",
        "event",
        "logger",
        "filename",
        "lineno",
        "dag_id",
        "run_id",
        "task_id",
        "try_number",
        "map_index",
        "ti_id",
    }
)
NO_DATE = {"logical_date": None} if IS_AIRFLOW_3 else {}
BY_ID = {"order_by": "id"} if IS_AIRFLOW_3 else {}
FINISHED = frozenset({"success", "failed"})
POLL_SECONDS = 1.0
DATABASE_ATTEMPTS = 20
PATIENCE = float(os.environ.get("FSM_PATIENCE", "600"))
"""Seconds after which a test gives up what it waits for: more than the slowest machine needs."""

T = TypeVar("T")


class LocalAirflowError(Exception):
    """Airflow did not do what was asked of it; the text says which part of it and why."""


def wait_until(find: Callable[[], T], condition: str) -> T:
    """Return what ``find`` returns as soon as that is true.

    :param condition: in words, for the error of the deadline.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        result = find()
        if result:
            return result
        if time.monotonic() > deadline:
            raise LocalAirflowError(f"not so after {PATIENCE:.0f} s: {condition}")
        time.sleep(POLL_SECONDS)


class AirflowApi:
    """The REST API of an Airflow: ``/api/v2``, in Airflow 2 ``/api/v1``.

    Airflow 3 gives everybody an admin's token; Airflow 2 needs none.

    :param base_url: the API server's URL
    """

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._session = requests.Session()
        self._session.trust_env = False

    def api(self, method: str, path: str, **arguments: Any) -> Any:
        """Send one request to the API and return its JSON; a refusal raises with its text.

        SQLite has one writer at a time: what Airflow could not write, it is asked for again.
        """
        self._log_in()
        url = f"{self.base_url}{ROOT}{path}"
        for _ in range(DATABASE_ATTEMPTS):
            response = self._session.request(method, url, timeout=60, **arguments)
            is_locked = response.status_code == 500 and "Database error" in response.text
            if not is_locked:
                break
            time.sleep(POLL_SECONDS)
        if not response.ok:
            raise LocalAirflowError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json() if response.content else None

    def _ask(self, method: str, path: str, **arguments: Any) -> None:
        """Ask for what may have been asked for already."""
        try:
            self.api(method, path, **arguments)
        except LocalAirflowError as error:
            if " 409 " not in str(error):
                raise

    def ui(self, path: str) -> requests.Response:
        """Get what the UI is made of, which is no part of the API."""
        self._log_in()
        response = self._session.get(f"{self.base_url}{path}", timeout=60)
        response.raise_for_status()
        return response

    def _log_in(self) -> None:
        if not IS_AIRFLOW_3 or "Authorization" in self._session.headers:
            return
        response = self._session.get(f"{self.base_url}/auth/token", timeout=30)
        response.raise_for_status()
        token = response.json()["access_token"]
        self._session.headers["Authorization"] = f"Bearer {token}"

    def import_errors(self) -> dict[str, str]:
        """Each DAG file that cannot be imported, with its stack trace."""
        errors = self._all("/importErrors", "import_errors")
        return {error["filename"]: error["stack_trace"] for error in errors}

    def wait_for_dag(self, dag_id: str) -> None:
        """Return once the DAG is parsed; raise as soon as any file fails to import."""

        def is_parsed() -> bool:
            if self._has_dag(dag_id):
                return True
            errors = self.import_errors()
            if errors:
                texts = [f"{file}:\n{stack_trace}" for file, stack_trace in errors.items()]
                raise LocalAirflowError("\n".join(texts))
            return False

        wait_until(is_parsed, f"{dag_id} is parsed")

    def _has_dag(self, dag_id: str) -> bool:
        parameters = {"dag_id_pattern": dag_id, "limit": 100}
        similar = self.api("GET", "/dags", params=parameters)["dags"]
        return dag_id in [dag["dag_id"] for dag in similar]

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Start a run, as soon as the DAG is parsed, and return its id."""
        self.wait_for_dag(dag_id)
        if run_id is None:
            run_id = f"manual__{datetime.now(UTC).isoformat()}"
        body = {
            "dag_run_id": run_id,
            "conf": dict(conf or {}),
            **NO_DATE,
        }
        self._ask("POST", f"/dags/{dag_id}/dagRuns", json=body)
        return run_id

    def begin(self, dag_id: str) -> str:
        """Trigger a DAG, and wait for its run: a scheduler dies if SQLite has too many writers."""
        run_id = self.trigger(dag_id)

        def has_begun() -> bool:
            return self.run_state(dag_id, run_id) != "queued"

        wait_until(has_begun, f"{dag_id} has begun")
        return run_id

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause a DAG, as soon as it is parsed.

        The watchers of its assets begin and end when it is parsed again, so that is asked for.
        """
        self.wait_for_dag(dag_id)
        dag = self.api("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})
        self._ask("PUT", f"/parseDagFile/{dag['file_token']}")

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return all runs of a DAG, the first one first."""
        return self._all(f"/dags/{dag_id}/dagRuns", "dag_runs")

    def succeeded_runs(self, dag_id: str) -> list[str]:
        """Return the ids of a DAG's runs that have succeeded, the first one first."""
        run_ids: list[str] = []
        for run in self.runs(dag_id):
            has_succeeded = run["state"] == "success"
            if has_succeeded:
                run_ids.append(run["dag_run_id"])
        return run_ids

    def first_run(self, dag_id: str) -> str:
        """Wait until Airflow has started a run of a DAG by itself, and return its id."""
        self.wait_for_dag(dag_id)
        runs = wait_until(lambda: self.runs(dag_id), f"{dag_id} has a run")
        return str(runs[0]["dag_run_id"])

    def _all(self, path: str, kind: str) -> list[dict[str, Any]]:
        """Read every page of a listing; it has at most 100, whatever is asked for."""
        records: list[dict[str, Any]] = []
        while True:
            parameters = {"limit": 100, "offset": len(records), **BY_ID}
            page = self.api("GET", path, params=parameters)
            records += page[kind]
            is_last = not page[kind] or len(records) >= page["total_entries"]
            if is_last:
                return records

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        run = self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
        return str(run["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Map task id to state; a mapped task instance is named ``task_id[map_index]``."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        instances = self._all(path, "task_instances")
        return {_task_name(instance): instance["state"] for instance in instances}

    def follow(self, dag_id: str, run_id: str) -> Iterator[tuple[str, dict[str, str | None]]]:
        """Yield the state of the run and of its tasks, again and again until the run is over."""
        deadline = time.monotonic() + PATIENCE
        while True:
            # The run first: a run that is over has no task left to change.
            run_state = self.run_state(dag_id, run_id)
            states = self.task_states(dag_id, run_id)
            yield run_state, states
            if run_state in FINISHED:
                return
            if time.monotonic() > deadline:
                raise LocalAirflowError(f"{run_id} is {run_state} after {PATIENCE:.0f} s: {states}")
            time.sleep(POLL_SECONDS)

    def wait_for_tasks(
        self,
        dag_id: str,
        run_id: str,
        are_there: Callable[[dict[str, str | None]], bool],
    ) -> None:
        """Return once ``are_there`` says so of the tasks' states; raise if the run ends first."""
        for _, states in self.follow(dag_id, run_id):
            if are_there(states):
                return
        raise LocalAirflowError(f"{run_id} is over, and its tasks never were as expected: {states}")

    def wait_for_run(self, dag_id: str, run_id: str) -> str:
        """Return the run's final state."""

        def is_over() -> bool:
            return self.run_state(dag_id, run_id) in FINISHED

        wait_until(is_over, f"{run_id} of {dag_id} is over")
        return self.run_state(dag_id, run_id)

    def xcom(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        key: str = "return_value",
        map_index: int = -1,
    ) -> Any:
        """Return the value that a task pushed."""
        path = f"{_task_path(dag_id, run_id, task_id)}/xcomEntries/{key}"
        entry = self.api("GET", path, params={"map_index": map_index})
        value = entry["value"]
        if IS_AIRFLOW_3:
            return value
        # Airflow 2 gives it as Python shows it.
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(value)
        return value

    def task_log(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        try_number: int | None = None,
        map_index: int = -1,
    ) -> str:
        """Return the log of one attempt (default: the latest), one line per event."""
        path = _task_path(dag_id, run_id, task_id)
        if try_number is None:
            instance = path if map_index < 0 else f"{path}/{map_index}"
            try_number = self.api("GET", instance)["try_number"]
        log = self.api(
            "GET",
            f"{path}/logs/{try_number}",
            params={"full_content": True, "map_index": map_index},
            headers={"Accept": "application/json"},
        )
        content = log["content"]
        if IS_AIRFLOW_3:
            lines = [_log_line(event) for event in content]
        else:
            lines = [text for _, text in ast.literal_eval(content)]
        return "\n".join(lines)

    def clear(self, dag_id: str, run_id: str, task_ids: Iterable[str]) -> None:
        """Make the tasks run again in the same run."""
        body = {
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "reset_dag_runs": True,
            "dry_run": False,
        }
        self.api("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def extra_links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Map the name of each extra link of a task to its URL."""
        links = self.api("GET", f"{_task_path(dag_id, run_id, task_id)}/links")
        return dict(links["extra_links"])

    def set_variable(self, key: str, value: Any) -> None:
        """Make a Variable that holds a value as JSON."""
        body = {"key": key, "value": json.dumps(value)}
        self.api("POST", "/variables", json=body)

    def add_connection(self, conn_id: str, connection: Mapping[str, Any], **extra: Any) -> None:
        """Make a connection in the database, with settings in its extra."""
        body = {
            **connection,
            "connection_id": conn_id,
            "extra": json.dumps(extra),
        }
        self.api("POST", "/connections", json=body)

    def test_connection(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Press the Test button: the payload is a connection, the response status and message."""
        return dict(self.api("POST", "/connections/test", json=dict(payload)))


def _task_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"


def _task_name(instance: Mapping[str, Any]) -> str:
    task_id = str(instance["task_id"])
    map_index = instance["map_index"]
    is_mapped = map_index >= 0
    return f"{task_id}[{map_index}]" if is_mapped else task_id


def _log_line(event: Mapping[str, Any]) -> str:
    """Time, level and message, then every other field but those that each line repeats."""
    words: list[str] = []
    for name in ("timestamp", "level", "event"):
        value = event.get(name)
        if value:
            words.append(str(value))
    others = dict(event)
    errors = others.pop("error_detail", [])
    for name in REPEATED_LOG_FIELDS:
        others.pop(name, None)
    if others:
        words.append(json.dumps(others))
    tracebacks = [_traceback(error) for error in errors]
    return "\n".join([" ".join(words), *tracebacks])


def _traceback(error: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for frame in error["frames"]:
        place = f"{frame['filename']}:{frame['lineno']}"
        lines.append(f"  {place} {frame['name']}")
    lines.append(f"{error['exc_type']}: {error['exc_value']}")
    lines += error["exc_notes"]
    return "\n".join(lines)
