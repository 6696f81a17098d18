"""One work order on a real Airflow, and the webhook of it: ``python -m tests.system.demo [--ui]``."""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fsm_provider.testing import Engineer, FakeFieldService
from tests.system.airflow_api import POLL_SECONDS, LocalAirflowError
from tests.system.local_airflow import LocalAirflow

DAGS_FOLDER = Path(__file__).parents[2] / "example_dags"
DAG_ID = "work_order_roundtrip"
ENGINEER = Engineer(after=8.0, every=2.0, form_names=("Gas Safety Record", "Job Sign-off"))
SHOWN_STATES = frozenset(
    {"running", "deferred", "success", "failed", "upstream_failed", "skipped"}
    | {"up_for_retry", "up_for_reschedule"}
)
RUN_SECONDS = 180.0


class Narrator:
    """Prints one line per step, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def say(self, who: str, what: str) -> None:
        """Print a line at once, also into a pipe."""
        print(f"{self.seconds:6.1f} s  {who:<16}{what}", flush=True)


def main() -> int:
    """Run the demonstration; the return value is the exit code."""
    parser = argparse.ArgumentParser(description="One work order, from job to completed forms.")
    parser.add_argument("--ui", action="store_true", help="stay up until Ctrl-C")
    stay = parser.parse_args().ui
    # A shell that starts this in the background makes it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        return _demonstrate(stay)
    except LocalAirflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _exit_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _demonstrate(stay: bool) -> int:
    narrator = Narrator()
    with (
        tempfile.TemporaryDirectory(prefix="fsm-demo-") as home,
        FakeFieldService(engineer=ENGINEER) as service,
    ):
        narrator.say("fake service", service.base_url)
        narrator.say("Airflow", "starting ...")
        env = {"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json()}
        with LocalAirflow(DAGS_FOLDER, Path(home), env) as airflow:
            narrator.say("Airflow", airflow.base_url)
            code = _register(airflow, narrator) or _run(airflow, service, narrator)
            if stay:
                print(f"\nOpen {airflow.base_url} (no login needed); Ctrl-C stops everything.")
                signal.pause()
            return code


def _register(airflow: LocalAirflow, narrator: Narrator) -> int:
    """Configure the webhook receiver, and register its address with the service."""
    endpoints = {"fsm_default/jobs": {"signature": "standard-webhooks"}}
    configuration = {"base_url": airflow.base_url, "endpoints": endpoints}
    airflow.api("POST", "/variables", json={"key": "fsm_webhooks", "value": json.dumps(configuration)})
    run_id = airflow.trigger("webhook_bootstrap")
    if airflow.wait_for_run("webhook_bootstrap", run_id, RUN_SECONDS) != "success":
        print(airflow.task_log("webhook_bootstrap", run_id, "register"), file=sys.stderr)
        return 1
    (webhook,) = airflow.xcom("webhook_bootstrap", run_id, "register")
    events = ", ".join(webhook["eventTypes"])
    narrator.say("register", f"webhook {webhook['id']}, {events} -> {webhook['targetURL']}")
    return 0


def _follow_webhook(airflow: LocalAirflow, service: FakeFieldService, narrator: Narrator) -> int:
    """Show the delivery of the job, and the run that it started."""
    for attempt in service.deliveries:
        narrator.say("fake service", f"delivered job {attempt.job_id} by webhook: {attempt.status}")
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        for run in airflow.api("GET", "/dags/jobs_from_webhooks/dagRuns")["dag_runs"]:
            if run["state"] == "success":
                found = airflow.xcom("jobs_from_webhooks", run["dag_run_id"], "references")
                said = ", ".join(f"{one['type']}: job {one['jobID']}" for one in found)
                narrator.say("webhook", f"started {run['dag_run_id'].partition('__')[0]} run: {said}")
                return 0
        time.sleep(POLL_SECONDS)
    print("no run was started by the webhook", file=sys.stderr)
    return 1


def _run(airflow: LocalAirflow, service: FakeFieldService, narrator: Narrator) -> int:
    run_id = airflow.trigger(DAG_ID)
    narrator.say("DAG", f"{DAG_ID} triggered")
    seen: dict[str, str | None] = {}
    forms: list[str] = []
    try:
        for _, states in airflow.follow(DAG_ID, run_id, RUN_SECONDS):
            for form in service.forms[len(forms) :]:
                forms.append(form["formName"])
                narrator.say("engineer", f"completed {form['formName']}")
            for task_id, state in states.items():
                if state in SHOWN_STATES and state != seen.get(task_id):
                    narrator.say(task_id, f"{state}{_result(airflow, run_id, task_id, state)}")
            seen = states
    except LocalAirflowError as error:
        print(error, file=sys.stderr)
    run_state = airflow.run_state(DAG_ID, run_id)
    if run_state != "success":
        _print_logs(airflow, run_id, seen)
        return 1
    if _follow_webhook(airflow, service, narrator):
        return 1
    rows = {
        "job": ", ".join(str(job["id"]) for job in service.jobs),
        "forms": ", ".join(forms),
        "run": run_state,
        "seconds": f"{narrator.seconds:.1f}",
    }
    print("\n" + "\n".join(f"  {name:<9}{value}" for name, value in rows.items()), flush=True)
    return 0


def _result(airflow: LocalAirflow, run_id: str, task_id: str, state: str | None) -> str:
    """What a task that succeeded has to show for it."""
    if state != "success":
        return ""
    value: Any = airflow.xcom(DAG_ID, run_id, task_id)
    match task_id:
        case "create_job":
            return f": job {value['id']}, {value['customerReference']}"
        case "wait_for_forms":
            return ": " + ", ".join(form["formName"] for form in value)
        case _:
            return f": {value['purchaseOrder']} is done, {value['link']}"


def _print_logs(airflow: LocalAirflow, run_id: str, states: dict[str, str | None]) -> None:
    for task_id, state in states.items():
        if state not in (None, "success", "skipped", "upstream_failed"):
            log = airflow.task_log(DAG_ID, run_id, task_id)
            print(f"\n--- {task_id} is {state}\n{log}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
