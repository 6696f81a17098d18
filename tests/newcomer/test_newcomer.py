"""From an empty folder to the first DAG, with the mistakes that are made on the way."""

import json
from collections import Counter
from typing import Any

import pytest
import requests

from tests.newcomer.mistakes import COMMANDS, DAG_OF_TASKS, IMPORTS, TASKS, Mistake
from tests.newcomer.newcomer import OWN_TOKEN, Newcomer, StandaloneApi
from tests.system.airflow_api import wait_until

MAX_LENGTH = 600
"""Characters of a line that is a message."""
TRACEBACK = "Traceback (most recent call last)"
FIRST_JOB = "first_job"
PLANNED = "planned_maintenance_jobs"
WITHOUT_MISTAKE = ("first_form", "annual_gas_check")
"""DAGs."""


def test_the_quickstart_does_what_it_says(connected: Newcomer) -> None:
    follow_the_quickstart(connected)


def test_the_quickstart_does_what_it_says_with_an_older_airflow(
    with_older_airflow: Newcomer,
) -> None:
    assert "3.1.8" in with_older_airflow.terminals[1].run("airflow version")

    follow_the_quickstart(with_older_airflow)


def follow_the_quickstart(newcomer: Newcomer) -> None:
    """Do the steps 5 and 6, and stop Airflow as step 7 says."""
    newcomer.say("step 5", "starting Airflow ...")
    standalone = newcomer.start_airflow(FIRST_JOB)
    assert f"Password for user 'admin': {newcomer.api.password}" in standalone.output
    newcomer.say("step 5", f"Airflow lists {FIRST_JOB}")
    newcomer.terminals[2].run(newcomer.steps[5][1])
    check_first_job(newcomer)

    newcomer.terminals[2].run(newcomer.steps[6][0])
    check_planned_jobs(newcomer)

    presses = standalone.interrupt()
    assert "Shutting down components" in standalone.output
    newcomer.say("step 7", f"Airflow is stopped: Ctrl-C, {presses} x")
    with pytest.raises(requests.ConnectionError):
        requests.get(newcomer.api.base_url, timeout=5)


def check_first_job(newcomer: Newcomer) -> None:
    """Check that its run waits for its form, and that the cleared task creates nothing."""
    api = newcomer.api

    def is_deferred(states: dict[str, str | None]) -> bool:
        return states.get("wait_for_its_form") == "deferred"

    def is_cleared() -> bool:
        return api.task_states(FIRST_JOB, run_id)["create_job"] != "success"

    run_id = api.first_run(FIRST_JOB)
    api.wait_for_tasks(FIRST_JOB, run_id, is_deferred)
    newcomer.say("step 5", "the sensor is deferred")
    assert api.wait_for_run(FIRST_JOB, run_id) == "success"
    (form,) = api.xcom(FIRST_JOB, run_id, "wait_for_its_form")
    job = api.xcom(FIRST_JOB, run_id, "create_job")
    assert form["formName"] == "Gas Safety Record"
    assert form["jobID"] == job["id"]
    newcomer.say("step 5", "it has its form")

    api.clear(FIRST_JOB, run_id, ["create_job"])
    wait_until(is_cleared, "the task is cleared")
    assert api.wait_for_run(FIRST_JOB, run_id) == "success"
    assert api.xcom(FIRST_JOB, run_id, "create_job")["id"] == job["id"]
    newcomer.say("step 5", "cleared, the task creates nothing")


def check_planned_jobs(newcomer: Newcomer) -> None:
    """Check that two runs create each job once."""
    api = newcomer.api
    wait_until(lambda: len(api.runs(PLANNED)) == 2, "there are two runs")
    outcomes: Counter[str] = Counter()
    for run in api.runs(PLANNED):
        run_id = run["dag_run_id"]
        assert api.wait_for_run(PLANNED, run_id) == "success"
        outcomes.update(api.xcom(PLANNED, run_id, "report"))
    assert outcomes == Counter(created=5, existing=5)
    newcomer.say("step 6", "two runs have created each job once")


@pytest.fixture(scope="module")
def runs(own: Newcomer) -> dict[str, str]:
    """The run of each DAG, all started; the two without a mistake first."""
    for dag_id in WITHOUT_MISTAKE:
        own.api.pause(dag_id, False)
    return {dag_id: own.api.begin(dag_id) for dag_id in (*WITHOUT_MISTAKE, DAG_OF_TASKS)}


def test_the_first_dag_is_that_of_the_readme(own: Newcomer, runs: dict[str, str]) -> None:
    dag_id = "annual_gas_check"

    assert own.api.wait_for_run(dag_id, runs[dag_id]) == "success"

    result = own.api.xcom(dag_id, runs[dag_id], "store_pdfs")
    assert result["stored"] == 1
    assert result["failed"] == 0
    (pdf,) = (own.home / "stored").rglob("*.pdf")
    assert pdf.read_bytes().startswith(b"%PDF-")
    own.say("first DAG", f"{dag_id} has stored the form's PDF")
    # Somebody has completed a form.
    assert own.api.wait_for_run("first_form", runs["first_form"]) == "success"
    own.say("first DAG", "first_form has seen it, too")


def test_there_are_at_least_sixty_mistakes_each_with_a_name_of_its_own() -> None:
    names = [mistake.name for mistake in (*COMMANDS, *IMPORTS, *TASKS)]

    assert len(set(names)) == len(names) >= 60


@pytest.mark.parametrize("mistake", COMMANDS, ids=str)
def test_a_command_names_the_mistake(own: Newcomer, mistake: Mistake) -> None:
    command = mistake.text.format(name=mistake.name)

    code, output = own.terminals[1].attempt(command)

    judge(own, mistake, output.splitlines(), output)
    assert code or "failed" in output or "probed" in mistake.name
    if "fsm_provider" in mistake.text:
        assert TRACEBACK not in output


@pytest.mark.parametrize("mistake", IMPORTS, ids=str)
def test_an_import_error_names_the_mistake(own: Newcomer, mistake: Mistake) -> None:
    def error_of_its_file() -> str:
        for file, text in own.api.import_errors().items():
            if file.endswith(f"{mistake.name}.py"):
                return text
        return ""

    text = wait_until(error_of_its_file, f"{mistake.name} has an import error")

    judge(own, mistake, text.splitlines(), text)


@pytest.mark.parametrize("mistake", TASKS, ids=str)
def test_the_log_of_a_task_names_the_mistake(
    own: Newcomer, runs: dict[str, str], mistake: Mistake
) -> None:
    run_id = runs[DAG_OF_TASKS]

    def has_failed(states: dict[str, str | None]) -> bool:
        return states.get(mistake.name) == "failed"

    def events_with_error() -> list[dict[str, Any]]:
        """Give the log once it has its error, which may come after the state."""
        events = log_of_task(own.api, run_id, mistake.name)
        return events if any("error_detail" in event for event in events) else []

    own.api.wait_for_tasks(DAG_OF_TASKS, run_id, has_failed)

    events = wait_until(events_with_error, f"the log of {mistake.name} has an error")
    lines = [event["event"] for event in events]
    errors: list[dict[str, Any]] = []
    for event in events:
        errors += event.get("error_detail", ())
    lines += [f"{error['exc_type']}: {error['exc_value']}" for error in errors]
    judge(own, mistake, lines, json.dumps(events))
    assert len(errors) <= 1, f"{len(errors)} tracebacks:\n" + "\n".join(lines)


def log_of_task(api: StandaloneApi, run_id: str, task_id: str) -> list[dict[str, Any]]:
    """Give the events of a task's last attempt."""
    path = f"/dags/{DAG_OF_TASKS}/dagRuns/{run_id}/taskInstances/{task_id}"
    attempt = api.api("GET", path)["try_number"]
    log = api.api("GET", f"{path}/logs/{attempt}", params={"full_content": True})
    return list(log["content"])


def judge(newcomer: Newcomer, mistake: Mistake, lines: list[str], everything: str) -> None:
    """Check that one line names the field and the fix, is short, and that nothing shows a token.

    :param lines: the lines of the message, and of what is printed around it.
    """
    url = newcomer.own_url
    _, _, host = url.partition("//")
    parts = [part.replace("URL", url).replace("HOST", host) for part in mistake.says]
    shown = "\n".join(lines)
    messages = [line for line in lines if all(part in line for part in parts)]
    assert messages, f"no line of this says {' ... '.join(parts)}:\n{shown}"
    shortest = min(messages, key=len)
    assert len(shortest) <= MAX_LENGTH, f"a long message:\n{shortest}"
    assert OWN_TOKEN not in everything
    assert "canary-wrong-token" not in everything
    assert everything.count(TRACEBACK) <= 1, f"more than one traceback:\n{shown}"
    newcomer.say("mistake", f"{mistake}: {shortest.strip()}")
