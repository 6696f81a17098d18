"""What the pages show runs on a real Airflow: the Python of operators and sensors, and the recipes."""

import re
import shlex
import sqlite3
import subprocess
from contextlib import closing
from email.message import EmailMessage
from pathlib import Path

from fsm_provider.testing import Engineer, FakeFieldService, faults
from tests.capabilities import IS_AIRFLOW_3
from tests.pages import DOCS, blocks
from tests.smtp import Mailbox
from tests.system.airflow_api import wait_until
from tests.system.examples import WITH_LEDGER
from tests.system.local_airflow import AIRFLOW, LocalAirflow


def test_what_the_pages_show_of_the_operators_runs(airflow: LocalAirflow, tmp_path: Path) -> None:
    # A service of its own: it has what the specification only names.
    with FakeFieldService(engineer=Engineer(after=0.5), properties={7, 8}) as service:
        users = {"pagination": {"hasMore": False}, "data": [{"id": 1}, {"id": 2}]}
        service.fail("GET", "/users", faults.Status(200, body=users), every=True)
        service.fail(
            "POST", "/jobs/4711/hold", faults.Status(200, body={"isJobOnHold": True}), every=True
        )
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
        assert airflow.xcom("howto", run_id, "put_on_hold") == {"isJobOnHold": True}
        assert airflow.xcom("howto", run_id, "wait_for_completion") == [
            {"id": 4711, "status": "Done"}
        ]
        assert len(service.jobs) == 4
        assert airflow.xcom("howto", run_id, "report") == ["PM-4 rejected"]
        states = airflow.task_states("howto", run_id)
        assert [states[f"tell_the_tenant[{index}]"] for index in (0, 1)] == ["success", "skipped"]
        files = ["2026.csv", "property=7/forms.parquet", "property=8/forms.parquet"]
        assert all((tmp_path / "forms" / name).is_file() for name in files)


RECIPES = DOCS / "recipes.md"


def test_the_recipes_run_without_a_logical_date(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    properties = [9741, 9742]
    with closing(sqlite3.connect(tmp_path / "planning.db")) as planning, planning:
        planning.execute("CREATE TABLE planned_visits (reference, property_id, due)")
        rows = [
            ("R-1", 9703, "2026-01-01"),
            ("R-2", 9704, "2026-01-01"),
            ("R-3", 9705, "9999-01-01"),
        ]
        rows.append(("R-4", None, "2026-01-01"))  # left out
        planning.executemany("INSERT INTO planned_visits VALUES (?, ?, ?)", rows)
    airflow.add_connection(
        "planning", {"conn_type": "sqlite", "host": str(tmp_path / "planning.db")}
    )
    for conn_id in ("fsm_north", "fsm_south"):
        airflow.add_connection(conn_id, service.connection())
    replaced = {
        "/data/": f"{tmp_path}/",
        "list(range(1, 51))": str(properties),
        "deferrable=True,": "deferrable=True, poke_interval=2,",
        **WITH_LEDGER,
    }
    recipes = "".join(block.text for block in blocks("python", pages=[RECIPES]))
    for old, new in replaced.items():
        assert recipes.count(old) == 1, old
        recipes = recipes.replace(old, new)
    (dags_folder / "recipes.py").write_text(recipes)

    runs = {
        dag_id: airflow.begin(dag_id)
        for dag_id in re.findall(r"^(\w+)\(\)$", recipes, re.MULTILINE)
    }
    for property_id in properties:
        at_property = {"propertyID": property_id}.items()
        job = wait_until(
            lambda at_property=at_property: next(
                (job for job in service.jobs if at_property <= job.items()), None
            ),
            f"a job at property {property_id}",
        )
        service.add_form(job_id=job["id"], form_name="Smoke Alarm Test")

    assert len(runs) == 4
    for dag_id, run_id in runs.items():
        assert airflow.wait_for_run(dag_id, run_id) == "success", dag_id
    outcomes = airflow.xcom("planned_visits", runs["planned_visits"], "create")
    assert [(one["key"], one["outcome"]) for one in outcomes] == [
        ("R-1", "created"),
        ("R-2", "created"),
    ]
    assert list((tmp_path / "forms").glob("window_start=*/forms.parquet"))

    if IS_AIRFLOW_3:
        (backfill,) = (block.text for block in blocks("text", pages=[RECIPES]))
        two_days = shlex.split(backfill.replace("2026-01-30", "2026-01-02"))[1:]
        # Beside a busy scheduler Airflow's command may fail, as SQLite's database is locked.
        wait_until(
            lambda: not subprocess.run([AIRFLOW, *two_days], env=airflow.env).returncode,
            "a backfill",
        )
        runs_of_days = [
            run for run in airflow.runs("nightly_export") if run["run_type"] == "backfill"
        ]
        ids = [run["dag_run_id"] for run in runs_of_days]
        assert [airflow.wait_for_run("nightly_export", one) for one in ids] == ["success"] * 2


def text_of(mail: EmailMessage) -> str:
    return "".join(
        part.get_content() for part in mail.walk() if part.get_content_maintype() == "text"
    )


def test_the_alert_of_the_recipe_mails_what_is_missing_and_what_is_uncertain(
    airflow: LocalAirflow, service: FakeFieldService, mailbox: Mailbox, dags_folder: Path
) -> None:
    late, uncertain = 9743, 9744
    service.fail("POST", f"/properties/{uncertain}/jobs", faults.Reset(after_handling=True))
    (recipe,) = (
        block.text for block in blocks("python", pages=[RECIPES]) if "spring_campaign" in block.text
    )
    dag_file = recipe.replace("spring_campaign", "late_campaign").replace("days=28", "seconds=5")
    dag_file = dag_file.replace("list(range(1, 51))", f"[{late}, {uncertain}]")
    (dags_folder / "late_campaign.py").write_text(dag_file)

    run_id = airflow.trigger("late_campaign")

    assert airflow.wait_for_run("late_campaign", run_id) == "failed"
    mails = {mail["Subject"]: text_of(mail) for mail in mailbox.mails if run_id in mail["Subject"]}
    assert mails.keys() == {f"{run_id}: visit.wait 0", f"{run_id}: visit.create_job 1"}
    said = f"of property {late}, of job [0-9]+.*Smoke Alarm Test.* missing"
    assert re.search(said, mails[f"{run_id}: visit.wait 0"], re.DOTALL)
    said = f"POST /properties/{uncertain}/jobs may or may not have taken effect"
    assert said in mails[f"{run_id}: visit.create_job 1"]
