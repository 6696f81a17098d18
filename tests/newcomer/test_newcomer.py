"""From an empty folder to the first DAG, with the mistakes that are made on the way."""

import json
from collections import Counter

import pytest
import requests

from tests.newcomer.conftest import OWN_TOKEN, Newcomer
from tests.newcomer.mistakes import COMMANDS, DAG_OF_TASKS, IMPORTS, TASKS, Mistake
from tests.system.airflow_api import wait_until

MAX_LENGTH = 600
"""Characters of a line that is a message."""
TRACEBACK = "Traceback (most recent call last)"


def test_the_quickstart_does_what_it_says(connected: Newcomer) -> None:
    newcomer, api, say = connected, connected.api, connected.say
    say("step 5", "starting Airflow ...")
    standalone = newcomer.start_airflow("first_job")
    assert f"Password for user 'admin': {api.password}" in standalone.output
    say("step 5", "Airflow lists first_job")
    newcomer.terminals[2].run(newcomer.steps[5][1])

    run_id = api.first_run("first_job")
    api.wait_for_tasks(
        "first_job", run_id, lambda states: states.get("wait_for_its_form") == "deferred"
    )
    say("step 5", "the sensor is deferred")
    assert api.wait_for_run("first_job", run_id) == "success"
    (form,) = api.xcom("first_job", run_id, "wait_for_its_form")
    job = api.xcom("first_job", run_id, "create_job")
    assert (form["formName"], form["jobID"]) == ("Gas Safety Record", job["id"])
    say("step 5", "it has its form")
    api.clear("first_job", run_id, ["create_job"])
    wait_until(
        lambda: api.task_states("first_job", run_id)["create_job"] != "success",
        "the task is cleared",
    )
    assert api.wait_for_run("first_job", run_id) == "success"
    assert api.xcom("first_job", run_id, "create_job")["id"] == job["id"]
    say("step 5", "cleared, the task creates nothing")

    planned = "planned_maintenance_jobs"
    newcomer.terminals[2].run(newcomer.steps[6][0])
    wait_until(lambda: len(api.runs(planned)) == 2, "there are two runs")
    run_ids = [run["dag_run_id"] for run in api.runs(planned)]
    assert [api.wait_for_run(planned, one) for one in run_ids] == ["success"] * 2
    reports = [Counter(api.xcom(planned, one, "report")) for one in run_ids]
    assert sum(reports, Counter()) == {"created": 5, "existing": 5}
    say("step 6", "two runs have created each job once")

    presses = standalone.interrupt()
    assert "Shutting down components" in standalone.output
    say("step 7", f"Airflow is stopped: Ctrl-C, {presses} x")
    with pytest.raises(requests.ConnectionError):
        requests.get(api.base_url, timeout=5)


@pytest.fixture(scope="module")
def runs(own: Newcomer) -> dict[str, str]:
    """The run of each DAG, all started; the two without a mistake first."""
    for name in ("first_form", "annual_gas_check"):
        own.api.pause(name, False)
    return {name: own.api.begin(name) for name in ("first_form", "annual_gas_check", DAG_OF_TASKS)}


def test_the_first_dag_is_that_of_the_readme(own: Newcomer, runs: dict[str, str]) -> None:
    dag_id = "annual_gas_check"

    assert own.api.wait_for_run(dag_id, runs[dag_id]) == "success"

    result = own.api.xcom(dag_id, runs[dag_id], "store_pdfs")
    assert (result["stored"], result["failed"]) == (1, 0)
    (pdf,) = (own.home / "stored").rglob("*.pdf")
    assert pdf.read_bytes().startswith(b"%PDF-")
    own.say("first DAG", f"{dag_id} has stored the form's PDF")
    # Somebody has completed a form.
    assert own.api.wait_for_run("first_form", runs["first_form"]) == "success"
    own.say("first DAG", "first_form has seen it, too")


def test_there_are_at_least_sixty_mistakes_each_with_a_name_of_its_own() -> None:
    names = [one.name for one in (*COMMANDS, *IMPORTS, *TASKS)]

    assert len(set(names)) == len(names) >= 60


@pytest.mark.parametrize("mistake", COMMANDS, ids=str)
def test_a_command_names_the_mistake(own: Newcomer, mistake: Mistake) -> None:
    code, output = own.terminals[1].attempt(mistake.text.format(name=mistake.name))

    judge(own, mistake, output.splitlines(), output)
    assert code or "failed" in output or "probed" in mistake.name
    if "fsm_provider" in mistake.text:
        assert TRACEBACK not in output


@pytest.mark.parametrize("mistake", IMPORTS, ids=str)
def test_an_import_error_names_the_mistake(own: Newcomer, mistake: Mistake) -> None:
    def found() -> str:
        errors = own.api.import_errors()
        return next(
            (text for file, text in errors.items() if file.endswith(f"{mistake.name}.py")), ""
        )

    text = wait_until(found, f"{mistake.name} has an import error")

    judge(own, mistake, text.splitlines(), text)


@pytest.mark.parametrize("mistake", TASKS, ids=str)
def test_the_log_of_a_task_names_the_mistake(
    own: Newcomer, runs: dict[str, str], mistake: Mistake
) -> None:
    api, run_id = own.api, runs[DAG_OF_TASKS]
    path = f"/dags/{DAG_OF_TASKS}/dagRuns/{run_id}/taskInstances/{mistake.name}"
    api.wait_for_tasks(DAG_OF_TASKS, run_id, lambda states: states.get(mistake.name) == "failed")
    attempt = api.api("GET", path)["try_number"]
    events = api.api("GET", f"{path}/logs/{attempt}", params={"full_content": True})["content"]
    errors = [error for event in events for error in event.get("error_detail", ())]
    lines = [event["event"] for event in events]
    lines += [f"{error['exc_type']}: {error['exc_value']}" for error in errors]
    judge(own, mistake, lines, json.dumps(events))
    assert len(errors) <= 1, f"{len(errors)} tracebacks:\n" + "\n".join(lines)


def judge(newcomer: Newcomer, mistake: Mistake, lines: list[str], everything: str) -> None:
    """Check that one line names the field and the fix, is short, and that nothing shows a token.

    :param lines: the lines of the message, and of what is printed around it.
    """
    url = newcomer.own_url
    says = [
        part.replace("URL", url).replace("HOST", url.partition("//")[2]) for part in mistake.says
    ]
    shown = "\n".join(lines)
    said = [line for line in lines if all(part in line for part in says)]
    assert said, f"no line of this says {' ... '.join(says)}:\n{shown}"
    assert len(min(said, key=len)) <= MAX_LENGTH, f"a long message:\n{min(said, key=len)}"
    assert [token for token in (OWN_TOKEN, "canary-wrong-token") if token in everything] == []
    assert everything.count(TRACEBACK) <= 1, f"more than one traceback:\n{shown}"
    newcomer.say("mistake", f"{mistake}: {min(said, key=len).strip()}")
