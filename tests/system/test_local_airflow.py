"""What LocalAirflow promises to the other system tests."""

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.system.airflow_api import LocalAirflowError
from tests.system.local_airflow import LocalAirflow


def test_a_run_is_followed_to_its_end(airflow: LocalAirflow) -> None:
    steps: list[tuple[str, str | None]] = []
    run_id = airflow.trigger("probe", {"order": "PO-1"})

    state = airflow.wait_for_run("probe", run_id, on_change=lambda *step: steps.append(step))

    assert state == "success"
    assert ("fail_if_asked", "success") in steps
    assert airflow.task_states("probe", run_id) == {"echo": "success", "fail_if_asked": "success"}
    assert airflow.xcom("probe", run_id, "echo") == {"order": "PO-1"}
    assert "looking at {'order': 'PO-1'}" in airflow.task_log("probe", run_id, "fail_if_asked")


def test_a_cleared_task_runs_again_and_each_try_keeps_its_log(airflow: LocalAirflow) -> None:
    run_id = airflow.trigger("probe", {"fail": True})
    assert airflow.wait_for_run("probe", run_id) == "failed"

    airflow.clear("probe", run_id, ["fail_if_asked"])

    assert airflow.wait_for_run("probe", run_id) == "failed"
    for try_number in (1, 2):
        assert "\nValueError: as asked" in airflow.task_log("probe", run_id, "fail_if_asked", try_number)


def test_a_run_that_ends_before_its_tasks_are_as_expected_is_reported(airflow: LocalAirflow) -> None:
    run_id = airflow.trigger("probe")

    with pytest.raises(LocalAirflowError, match=r"never were as expected: .*'echo': 'success'"):
        airflow.wait_for_tasks("probe", run_id, lambda states: "failed" in states.values())


def test_a_waiting_task_can_be_marked_by_hand(airflow: LocalAirflow) -> None:
    run_id = airflow.trigger("probe_waiting")
    airflow.wait_for_tasks("probe_waiting", run_id, lambda states: states == {"wait": "deferred"})

    airflow.set_task_state("probe_waiting", run_id, "wait", "success")

    assert airflow.wait_for_run("probe_waiting", run_id) == "success"


def test_a_killed_triggerer_takes_its_children_along_and_comes_back(airflow: LocalAirflow) -> None:
    killed = psutil.Process(airflow.processes["triggerer"].pid)
    family = [killed, *killed.children(recursive=True)]
    assert len(family) > 1

    airflow.kill("triggerer")

    assert not any(_is_running(process) for process in family)
    airflow.restart("triggerer")
    assert airflow.processes["triggerer"].poll() is None


def test_a_dag_file_that_cannot_be_imported_is_named(airflow: LocalAirflow, dags_folder: Path) -> None:
    broken = dags_folder / "broken_dag.py"
    broken.write_text("raise RuntimeError('broken on purpose')  # airflow dag\n")
    try:
        with pytest.raises(LocalAirflowError, match=r"broken_dag\.py:\n[\s\S]*broken on purpose"):
            airflow.trigger("no_such_dag")
    finally:
        broken.unlink()


def test_a_process_that_dies_while_starting_is_reported_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    before = _session_leaders()
    dags_folder = tmp_path / "dags"
    dags_folder.mkdir()
    env = {"AIRFLOW__TRIGGERER__CAPACITY": "none"}
    airflow = LocalAirflow(dags_folder, tmp_path / "home", env)

    with pytest.raises(LocalAirflowError, match=r"airflow triggerer ended with code \d"):
        airflow.start()

    assert airflow.processes == {}
    assert _session_leaders() == before
    airflow.stop()


def test_the_callers_airflow_settings_are_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "{}")

    env = LocalAirflow(tmp_path, tmp_path / "home", {"AIRFLOW_CONN_MINE": "{}"}).env

    assert env["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "AIRFLOW_CONN_OTHER" not in env
    assert env["AIRFLOW_CONN_MINE"] == "{}"


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _session_leaders() -> set[int]:
    """The sessions that this process has started and not ended."""
    sessions = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(child.pid))
    return sessions
