"""What the pages show runs on a real Airflow: operators, sensors and recipes."""

import re
import shlex
import sqlite3
import subprocess
from contextlib import closing
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from fsm_provider.testing import Engineer, FakeFieldService, faults
from tests.capabilities import IS_AIRFLOW_3
from tests.pages import DOCS, ROOT, blocks
from tests.smtp import Mailbox
from tests.system.airflow_api import wait_until
from tests.system.examples import WITH_LEDGER
from tests.system.local_airflow import AIRFLOW, LocalAirflow

RECIPES = ROOT / "tests" / "recipes"
NOT_HERE = {
    "one_run_for_each_form": "forms start it: test_one_run_for_each_form.py",
    "jobs_that_are_approved": "a person answers it: test_approved_jobs.py",
    "read_scan": "it needs a model",
}


def test_what_the_pages_show_of_the_operators_runs(airflow: LocalAirflow, tmp_path: Path) -> None:
    # A service of its own: it has what the specification only names.
    with FakeFieldService(engineer=Engineer(after=0.5), properties={7, 8}) as service:
        users = {"pagination": {"hasMore": False}, "data": [{"id": 1}, {"id": 2}]}
        service.fail("GET", "/users", faults.Status(200, body=users), every=True)
        on_hold = {"isJobOnHold": True}
        service.fail("POST", "/jobs/4711/hold", faults.Status(200, body=on_hold), every=True)
        job = {
            "id": 4711,
            "status": "Done",
            "completed": {"completedOnDateTime": "2026-03-01T12:00:00.000Z"},
        }
        service.fail("GET", "/jobs/4711", faults.Status(200, body=job), every=True)
        airflow.add_connection("fsm_howto", service.connection())

        run_id = airflow.trigger("howto", {"folder": tmp_path.as_uri()})

        assert airflow.wait_for_run("howto", run_id) == "success"
        assert airflow.xcom("howto", run_id, "users") == users["data"]
        assert airflow.xcom("howto", run_id, "put_on_hold") == on_hold
        completed = airflow.xcom("howto", run_id, "wait_for_completion")
        assert completed == [{"id": 4711, "status": "Done"}]
        assert len(service.jobs) == 4
        assert airflow.xcom("howto", run_id, "report") == ["PM-4 rejected"]
        states = airflow.task_states("howto", run_id)
        assert states["tell_the_tenant[0]"] == "success"
        assert states["tell_the_tenant[1]"] == "skipped"
        forms = tmp_path / "forms"
        assert (forms / "2026.csv").is_file()
        assert (forms / "property=7" / "forms.parquet").is_file()
        assert (forms / "property=8" / "forms.parquet").is_file()


def copy_recipes(dags_folder: Path, tmp_path: Path, properties: list[int]) -> list[str]:
    """Copy the recipes that run by themselves once they are started, and give their DAGs' ids."""
    replaced = {
        "/data/": f"{tmp_path}/",
        "list(range(1, 51))": str(properties),
        "deferrable=True,": "deferrable=True, poke_interval=2,",
        **WITH_LEDGER,
    }
    dag_ids = []
    for path in sorted(RECIPES.glob("[a-z]*.py")):
        if path.stem in NOT_HERE:
            continue
        recipe = path.read_text()
        for old, new in replaced.items():
            recipe = recipe.replace(old, new)
        if path.stem == "planned_maintenance_loop":
            # Its runs are the test's, and its plan is not that of the other recipe.
            recipe = recipe.replace('schedule="@daily"', "schedule=None")
            recipe = recipe.replace(" planned_visits", " plan_with_results")
        (dags_folder / f"recipe_{path.name}").write_text(recipe)
        dag_ids += re.findall(r"^(\w+)\(\)$", recipe, re.MULTILINE)
    return dag_ids


def test_the_recipes_run_without_a_logical_date(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    properties = [9741, 9742]
    create_planned_visits(tmp_path / "planning.db")
    planning = {"conn_type": "sqlite", "host": str(tmp_path / "planning.db")}
    airflow.add_connection("planning", planning)
    for conn_id in ("fsm_north", "fsm_south"):
        airflow.add_connection(conn_id, service.connection())
    dag_ids = copy_recipes(dags_folder, tmp_path, properties)

    runs = {dag_id: airflow.begin(dag_id) for dag_id in dag_ids}
    for property_id in properties:
        job_id = wait_for_job(service, property_id)
        service.add_form(job_id=job_id, form_name="Smoke Alarm Test")

    assert len(runs) == 6
    for dag_id, run_id in runs.items():
        assert airflow.wait_for_run(dag_id, run_id) == "success", dag_id
    first, second = airflow.xcom("planned_visits", runs["planned_visits"], "create")
    assert (first["key"], first["outcome"]) == ("R-1", "created")
    assert (second["key"], second["outcome"]) == ("R-2", "created")
    log = airflow.task_log("planned_visits", runs["planned_visits"], "report")
    assert "2 jobs: 2 created" in log
    assert list((tmp_path / "forms").glob("window_start=*/forms.parquet"))
    assert list((tmp_path / "all_forms").glob("month=20*/forms.parquet"))
    check_loop(airflow, service, tmp_path / "planning.db")

    if IS_AIRFLOW_3:
        backfill_two_days(airflow)
        runs_of_days = [
            run for run in airflow.runs("nightly_export") if run["run_type"] == "backfill"
        ]
        assert len(runs_of_days) == 2
        for run in runs_of_days:
            assert airflow.wait_for_run("nightly_export", run["dag_run_id"]) == "success"
        for day in ("2026-01-01", "2026-01-02"):
            assert (tmp_path / "forms" / f"window_start={day}" / "forms.parquet").is_file()


def check_loop(airflow: LocalAirflow, service: FakeFieldService, database: Path) -> None:
    """Check that the plan has the job of the visit that was due, and after its form the form."""
    query = "SELECT reference, job_id, form_id, done_on FROM plan_with_results ORDER BY 1"
    job_id = wait_for_job(service, 9706)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute(query).fetchall() == [
            ("L-1", job_id, None, None),
            ("L-2", None, None, None),
        ]

    def sign_off() -> dict[str, Any] | None:
        for form in service.forms:
            if form["jobDetails"]["jobID"] == job_id and form["formName"] == "Job Sign-off":
                return form
        return None

    form = wait_until(sign_off, f"job {job_id} is signed off")
    run_id = airflow.trigger("planned_maintenance_loop")
    assert airflow.wait_for_run("planned_maintenance_loop", run_id) == "success"
    with closing(sqlite3.connect(database)) as connection:
        (done, _) = connection.execute(query).fetchall()
    reference, job_of_row, form_id, done_on = done
    assert (reference, job_of_row, form_id) == ("L-1", job_id, form["id"])
    assert done_on.startswith(form["createdOnDateTime"][:19])


def create_planned_visits(database: Path) -> None:
    """Create the tables that the recipes read; of the first, two rows are due and can be jobs."""
    rows = [
        ("R-1", 9703, "2026-01-01"),
        ("R-2", 9704, "2026-01-01"),
        ("R-3", 9705, "9999-01-01"),
        ("R-4", None, "2026-01-01"),
    ]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE planned_visits (reference, property_id, due)")
        connection.executemany("INSERT INTO planned_visits VALUES (?, ?, ?)", rows)
        connection.execute(
            "CREATE TABLE plan_with_results"
            " (reference, property_id, notes, due, job_id, form_id, done_on)"
        )
        plan = [("L-1", 9706, "Service", "2026-01-01"), ("L-2", 9707, "Service", "9999-01-01")]
        connection.executemany(
            "INSERT INTO plan_with_results VALUES (?, ?, ?, ?, NULL, NULL, NULL)", plan
        )


def wait_for_job(service: FakeFieldService, property_id: int) -> int:
    """Wait until there is a job at a property, and give its id."""

    def first_job() -> dict[str, Any] | None:
        for job in service.jobs:
            if job.get("propertyID") == property_id:
                return job
        return None

    job = wait_until(first_job, f"a job at property {property_id}")
    return int(job["id"])


def backfill_two_days(airflow: LocalAirflow) -> None:
    """Run the command of the page, for fewer days."""
    (shown,) = blocks("text", pages=[DOCS / "recipes.md"])
    command = shown.text.replace("2026-01-30", "2026-01-02")
    _, *arguments = shlex.split(command)

    def is_accepted() -> bool:
        process = subprocess.run([AIRFLOW, *arguments], env=airflow.env)
        return process.returncode == 0

    # Beside a busy scheduler Airflow's command may fail, as SQLite's database is locked.
    wait_until(is_accepted, "a backfill")


def text_of(mail: EmailMessage) -> str:
    text = ""
    for part in mail.walk():
        if part.get_content_maintype() == "text":
            text += part.get_content()
    return text


def test_the_alert_of_the_recipe_mails_what_is_missing_and_what_is_uncertain(
    airflow: LocalAirflow, service: FakeFieldService, mailbox: Mailbox, dags_folder: Path
) -> None:
    late = 9743
    uncertain = 9744
    service.fail("POST", f"/properties/{uncertain}/jobs", faults.Reset(after_handling=True))
    recipe = (RECIPES / "forms_for_each_property.py").read_text()
    dag_file = recipe.replace("spring_campaign", "late_campaign")
    dag_file = dag_file.replace("days=28", "seconds=5")
    dag_file = dag_file.replace("list(range(1, 51))", f"[{late}, {uncertain}]")
    (dags_folder / "late_campaign.py").write_text(dag_file)

    run_id = airflow.trigger("late_campaign")

    assert airflow.wait_for_run("late_campaign", run_id) == "failed"
    mails = [mail for mail in mailbox.mails if run_id in mail["Subject"]]
    texts = {mail["Subject"]: text_of(mail) for mail in mails}
    assert texts.keys() == {f"{run_id}: visit.wait 0", f"{run_id}: visit.create_job 1"}
    says_missing = f"of property {late}, of job [0-9]+.*Smoke Alarm Test.* missing"
    assert re.search(says_missing, texts[f"{run_id}: visit.wait 0"], re.DOTALL)
    says_uncertain = f"POST /properties/{uncertain}/jobs may or may not have taken effect"
    assert says_uncertain in texts[f"{run_id}: visit.create_job 1"]
