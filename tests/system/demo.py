"""The example DAGs on a real Airflow and a fake service: ``python -m tests.system.demo [--ui]``."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_provider.testing import Deliveries, Engineer, FakeFieldService
from tests.narrator import Narrator
from tests.processes import end_on_signals
from tests.system.airflow_api import LocalAirflowError
from tests.system.examples import EXAMPLES
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled

ENGINEER = Engineer(after=8.0, every=2.0, form_names=("Gas Safety Record", "Job Sign-off"))
ENDS = frozenset({"success", "failed", "upstream_failed", "skipped"})
STEPS = ENDS | {"running", "deferred", "up_for_retry", "up_for_reschedule"}


@dataclass(frozen=True)
class Stage:
    """What every part of the demonstration uses."""

    airflow: LocalAirflow
    service: FakeFieldService
    narrator: Narrator

    def follow(
        self,
        dag_id: str,
        run_id: str,
        result: Callable[[str, Any], str],
        shown: frozenset[str] = STEPS,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """Print what a run does, until it has succeeded.

        :param result: describes a successful task, from its id and its result.
        :param shown: the states that are printed.
        :param on_poll: called at each poll of the run.
        :raises LocalAirflowError: with the logs of what failed.
        """
        seen: dict[str, str | None] = {}
        try:
            for _, states in self.airflow.follow(dag_id, run_id):
                on_poll()
                for task_id, state in states.items():
                    has_changed = state != seen.get(task_id)
                    if not has_changed or state not in shown:
                        continue
                    description = ""
                    if state == "success":
                        description = result(task_id, self._returned(dag_id, run_id, task_id))
                    text = f"{state}: {description}" if description else state
                    self.narrator.say(task_id, text)
                seen = states
        except LocalAirflowError as error:
            print(error, file=sys.stderr)
        run_state = self.airflow.run_state(dag_id, run_id)
        if run_state != "success":
            logs = self._logs(dag_id, run_id, seen)
            raise LocalAirflowError("\n".join([f"{dag_id} is {run_state}", *logs]))

    def _returned(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned, None where that is not kept, as of a branch."""
        try:
            return self.airflow.xcom(dag_id, run_id, task_id)
        except LocalAirflowError:
            return None

    def _logs(self, dag_id: str, run_id: str, states: dict[str, str | None]) -> list[str]:
        """Give the logs of the tasks that have run and not succeeded."""
        logs: list[str] = []
        for task_id, state in states.items():
            if state in (None, "success", "skipped", "upstream_failed"):
                continue
            log = self.airflow.task_log(dag_id, run_id, task_id)
            logs.append(f"\n--- {task_id} is {state}\n{log}")
        return logs


def work_order(stage: Stage) -> None:
    """One order, from its job to the engineer's completed forms."""
    forms: list[str] = []

    def on_poll() -> None:
        new_forms = stage.service.forms[len(forms) :]
        for form in new_forms:
            forms.append(form["formName"])
            stage.narrator.say("engineer", f"completed {form['formName']}")

    def result(task_id: str, value: Any) -> str:
        match task_id:
            case "create_job":
                return f"job {value['id']}, {value['customerReference']}"
            case "wait_for_forms":
                return ", ".join(form["formName"] for form in value)
            case _:
                return f"{value['purchaseOrder']} is done, job {value['jobID']}"

    run_id = stage.airflow.trigger("work_order_roundtrip")
    stage.narrator.say("DAG", "work_order_roundtrip triggered")
    stage.follow("work_order_roundtrip", run_id, result, on_poll=on_poll)
    jobs = [str(job["id"]) for job in stage.service.jobs]
    stage.narrator.show(
        [
            ("job", ", ".join(jobs)),
            ("forms", ", ".join(forms)),
            ("run", "success"),
            ("seconds", f"{stage.narrator.seconds:.1f}"),
        ]
    )


def register_webhook(stage: Stage) -> None:
    """The receiver is configured, and its URL registered with the service."""
    endpoints = {"fsm_default/jobs": {"signature": "standard-webhooks"}}
    configuration = {"base_url": stage.airflow.base_url, "endpoints": endpoints}
    stage.airflow.set_variable("fsm_webhooks", configuration)
    run_id = stage.airflow.trigger("webhook_bootstrap")
    stage.narrator.say("DAG", "webhook_bootstrap triggered")

    def result(task_id: str, value: Any) -> str:
        (webhook,) = value
        event_types = ", ".join(webhook["eventTypes"])
        return f"webhook {webhook['id']}, {event_types} -> {webhook['targetURL']}"

    stage.follow("webhook_bootstrap", run_id, result, shown=ENDS)


def delivered_job(stage: Stage) -> None:
    """The webhook of the job that the work order created, and the run that it started."""
    for attempt in stage.service.deliveries:
        text = f"delivered job {attempt.job_id} by webhook: {attempt.status}"
        stage.narrator.say("fake service", text)
    run_id = stage.airflow.first_run("jobs_from_webhooks")
    stage.follow("jobs_from_webhooks", run_id, lambda task_id, value: "", shown=ENDS)
    references = stage.airflow.xcom("jobs_from_webhooks", run_id, "references")
    jobs = [f"{reference['type']}: job {reference['jobID']}" for reference in references]
    stage.narrator.show(
        [
            ("webhook", ", ".join(jobs)),
            ("run", type_of_run(run_id)),
        ]
    )


def type_of_run(run_id: str) -> str:
    """Give what a run's id begins with: what started it."""
    return run_id.partition("__")[0]


def planned_maintenance(stage: Stage) -> None:
    """A due list becomes jobs, and a second run creates none of them again."""
    dag_id = "planned_maintenance_jobs"

    def result(task_id: str, value: Any) -> str:
        match task_id:
            case "choose_rows":
                return f"{len(value)} rows are due"
            case "report":
                counts = [f"{count} {outcome}" for outcome, count in value.items()]
                return ", ".join(counts)
            case _:
                return ""

    stage.airflow.pause(dag_id, False)
    stage.narrator.say("DAG", f"{dag_id} unpaused: the run of the day starts")
    first = stage.airflow.first_run(dag_id)
    stage.follow(dag_id, first, result, shown=ENDS)
    second = stage.airflow.trigger(dag_id)
    stage.narrator.say("DAG", f"{dag_id} triggered again")
    stage.follow(dag_id, second, result, shown=ENDS)
    rows: list[Sequence[object]] = [("key", "propertyID", "jobID", "first run", "second run")]
    outcomes = stage.airflow.xcom(dag_id, first, "create_jobs")
    outcomes_again = stage.airflow.xcom(dag_id, second, "create_jobs")
    for outcome, again in zip(outcomes, outcomes_again, strict=True):
        job = (outcome["key"], outcome["propertyID"], outcome["jobID"])
        rows.append((*job, outcome["outcome"], again["outcome"]))
    stage.narrator.show(rows)


def unasked_form(stage: Stage) -> None:
    """A form that no DAG asked for, from its completion to the end of the run that it starts."""
    dag_id = "gas_safety_forms"

    def result(task_id: str, value: Any) -> str:
        match task_id:
            case "parse_forms":
                forms = [f"{form['formName']} of property {form['propertyID']}" for form in value]
                return ", ".join(forms)
            case "route":
                return ""
            case _:
                form_ids = [str(form_id) for form_id in value]
                return f"form {', '.join(form_ids)}"

    stage.airflow.pause(dag_id, False)
    stage.narrator.say("DAG", f"{dag_id} unpaused: its asset is watched")
    until_polled(stage.service)
    form = stage.service.add_form(form_name="Gas Safety Record", property_id=31)
    completed_at = stage.narrator.seconds
    text = f"completed {form['formName']} {form['id']}, which no DAG asked for"
    stage.narrator.say("engineer", text)
    run_id = stage.airflow.first_run(dag_id)
    stage.narrator.say("DAG", f"{dag_id} started by its asset")
    stage.follow(dag_id, run_id, result, shown=ENDS)
    seconds = stage.narrator.seconds - completed_at
    stage.narrator.show(
        [
            ("form", form["id"]),
            ("run", type_of_run(run_id)),
            ("seconds since its completion", f"{seconds:.1f}"),
        ]
    )


PARTS = (
    register_webhook,
    work_order,
    delivered_job,
    planned_maintenance,
    unasked_form,
)


def main() -> int:
    """Run the demonstration; the return value is the exit code."""
    parser = argparse.ArgumentParser(
        description="The example DAGs on a real Airflow and a fake service."
    )
    parser.add_argument("--ui", action="store_true", help="stay up until Ctrl-C")
    stay = parser.parse_args().ui
    end_on_signals()
    try:
        return _demonstrate(stay)
    except LocalAirflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _demonstrate(stay: bool) -> int:
    narrator = Narrator()
    with (
        tempfile.TemporaryDirectory(prefix="fsm-demo-") as folder,
        FakeFieldService(engineer=ENGINEER, deliveries=Deliveries()) as service,
    ):
        narrator.say("fake service", service.base_url)
        narrator.say("Airflow", "starting ...")
        # A copy, since some examples write files beside themselves.
        dags = Path(folder, "dags")
        shutil.copytree(EXAMPLES, dags, ignore=shutil.ignore_patterns("__pycache__"))
        home = Path(folder, "airflow")
        env = connections_with_ledger(service, home) | {"FSM_POLL_INTERVAL": "1"}
        with LocalAirflow(dags, home, env) as airflow:
            narrator.say("Airflow", airflow.base_url)
            code = _play(Stage(airflow, service, narrator))
            if stay:
                print(f"\nOpen {airflow.base_url} (no login needed); Ctrl-C stops everything.")
                signal.pause()
            return code


def _play(stage: Stage) -> int:
    try:
        for part in PARTS:
            part(stage)
    except LocalAirflowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
