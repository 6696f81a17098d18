"""The shell blocks of the pages are run as they stand, page by page, each page in one shell.

What stands for the reader's own service is a fake, and what stays up goes to the background. Of ``make``,
which takes minutes, it is tried that the target is there, and of ``pip``, in ``tests/unit/test_docs.py``,
that the extras are. An environment that a page makes is the tests' own.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

import pytest

from fsm_provider.testing import Engineer, FakeFieldService, faults
from tests.pages import DOCS, PAGES, ROOT, blocks
from tests.system.airflow_api import AirflowApi, wait_until
from tests.system.examples import WITH_LEDGER
from tests.system.local_airflow import LocalAirflow, create_database, environment, free_port, kill_session
from tests.unit.plugins import signing

BASE_URL, TOKEN = "https://api.example.com/v1", "<ACCESS_TOKEN>"
"""The reader's own."""
PREAMBLE = f"""\
set -euo pipefail
python3() {{ mkdir -p "$3/bin" && touch "$3/bin/activate"; }}
pip() {{ :; }}
make() {{ command make --dry-run --directory '{ROOT}' "$@" > /dev/null; }}
"""
STAYS_UP = {
    r"python -m fsm_provider fake .*": "grep -q '^export' {log}",
    "airflow standalone": "grep -q first_job {log}",
}
"""What stays up, and what succeeds once it is of use: the fake is there, the DAGs are parsed."""
COMMAND_SECONDS = 600.0
PAGES_WITH_COMMANDS = [page for page in PAGES if blocks("bash", "console", pages=[page])]


class Shell:
    """Runs the blocks of a page, and what they start, until it is closed."""

    def __init__(self, folder: Path, own: FakeFieldService) -> None:
        self.folder = folder
        self.api = AirflowApi(f"http://127.0.0.1:{(port := free_port())}")
        self._fakes_port = free_port()
        self._own = own
        ports = {
            f"AIRFLOW__LOGGING__{kind}_LOG_SERVER_PORT": str(free_port()) for kind in ("WORKER", "TRIGGER")
        }
        self._env = environment(folder / "dags", folder / "airflow", port) | {
            **ports,
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for name in ("AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"):
            del self._env[name]
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, script: str) -> None:
        """Run commands to their end; what stays up goes on in the background."""
        for number, (command, ready) in enumerate(STAYS_UP.items()):
            log = self.folder / f"background_{number}.log"
            waits = f" > {log} 2>&1 &\nuntil {ready.format(log=log)}; do sleep 0.5; done"
            script = re.sub(rf"^({command})$", rf"\1{waits}", script, flags=re.MULTILINE)
        own = {
            BASE_URL: self._own.base_url,
            quote(BASE_URL, safe=""): quote(self._own.base_url, safe=""),
            TOKEN: self._own.settings.token,
            "http://127.0.0.1:8400": f"http://127.0.0.1:{self._fakes_port}",
            "-m fsm_provider fake": f"-m fsm_provider fake --port {self._fakes_port}",
        }
        for shown, real in own.items():
            script = script.replace(shown, real)
        log = self.folder / "shell.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", PREAMBLE + script],
                env=self._env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        assert process.wait(COMMAND_SECONDS) == 0, log.read_text()

    def close(self) -> None:
        """End what still runs."""
        for process in self._running:
            kill_session(process)


def commands_for(page: Path) -> str:
    """Give the commands of a page's blocks, without prompts and output."""
    return "\n".join(
        "\n".join(re.findall(r"^\$ (.*)$", block.text, re.MULTILINE))
        if block.kind == "console"
        else block.text
        for block in blocks("bash", "console", pages=[page])
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of Airflow with nothing in it."""
    home = tmp_path_factory.mktemp("database")
    create_database(os.environ | {"AIRFLOW_HOME": str(home)})
    return home / "airflow.db"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    examples = shutil.copytree(ROOT / "example_dags", tmp_path / "example_dags")
    (tmp_path / "airflow" / "dags").mkdir(parents=True)
    shutil.copy(examples / "quickstart.py", tmp_path / "airflow" / "dags")
    with FakeFieldService(token="own-token", page_size=20, page_size_param="limit") as own:
        own.seed_forms(120)
        running = Shell(tmp_path, own)
        yield running
        running.close()


@pytest.mark.parametrize(
    "page", [page for page in PAGES_WITH_COMMANDS if page.name != "quickstart.md"], ids=attrgetter("name")
)
def test_the_commands_of_a_page_run(shell: Shell, page: Path, database: Path) -> None:
    shutil.copy(database, shell.folder / "airflow")
    delivery = b'{"type": "jobs.created"}'
    secret = signing.standard_secret()
    headers = signing.standard(secret, delivery)
    (shell.folder / "headers.txt").write_text(json.dumps(headers))
    (shell.folder / "body.bin").write_bytes(delivery)
    (shell.folder / "secret.txt").write_text(secret)

    shell.run(commands_for(page))


def test_the_quickstart_leads_to_a_deferred_sensor_that_has_its_form(shell: Shell) -> None:
    shell.run(commands_for(DOCS / "quickstart.md"))

    def until(dag_id: str, task_id: str, state: str) -> None:
        run_id = shell.api.first_run(dag_id)
        shell.api.wait_for_tasks(dag_id, run_id, lambda states: states.get(task_id) == state)

    until("first_job", "wait_for_its_form", "success")
    shell.api.trigger("first_form")
    until("first_form", "wait_for_a_form", "deferred")
    shell.api.trigger("first_job")
    until("first_form", "wait_for_a_form", "success")

    planned = "planned_maintenance_jobs"
    runs = [run["dag_run_id"] for run in shell.api.runs(planned)]
    assert [shell.api.wait_for_run(planned, run_id) for run_id in runs] == ["success"] * 2
    reports = [Counter(shell.api.xcom(planned, run_id, "report")) for run_id in runs]
    assert sum(reports, Counter()) == {"created": 5, "existing": 5}


def test_what_the_pages_show_of_the_operators_runs(airflow: LocalAirflow, tmp_path: Path) -> None:
    # A service of its own: it has what the specification only names.
    with FakeFieldService(engineer=Engineer(after=0.5), properties={7, 8}) as service:
        users = {"pagination": {"hasMore": False}, "data": [{"id": 1}, {"id": 2}]}
        service.fail("GET", "/users", faults.Status(200, body=users), every=True)
        service.fail("POST", "/jobs/4711/hold", faults.Status(200, body={"isJobOnHold": True}), every=True)
        job = {"id": 4711, "status": "Done", "completed": {"completedByID": 3}}
        service.fail("GET", "/jobs/4711", faults.Status(200, body=job), every=True)
        airflow.add_connection("fsm_howto", service.connection())

        run_id = airflow.trigger("howto", {"folder": tmp_path.as_uri()})

        assert airflow.wait_for_run("howto", run_id) == "success"
        assert airflow.xcom("howto", run_id, "users") == users["data"]
        assert airflow.xcom("howto", run_id, "put_on_hold") == {"isJobOnHold": True}
        assert airflow.xcom("howto", run_id, "wait_for_completion") == [{"id": 4711, "status": "Done"}]
        assert len(service.jobs) == 4
        assert airflow.xcom("howto", run_id, "report") == ["PM-4 rejected"]
        states = airflow.task_states("howto", run_id)
        assert [states[f"tell_the_tenant[{index}]"] for index in (0, 1)] == ["success", "skipped"]
        files = ["2026.csv", "property=7/forms.parquet", "property=8/forms.parquet"]
        assert all((tmp_path / "forms" / name).is_file() for name in files)


def test_the_recipes_run_without_a_logical_date(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    properties = [9741, 9742]
    with closing(sqlite3.connect(tmp_path / "planning.db")) as planning, planning:
        planning.execute("CREATE TABLE planned_visits (reference, property_id, due)")
        rows = [("R-1", 9703, "2026-01-01"), ("R-2", 9704, "2026-01-01"), ("R-3", 9705, "9999-01-01")]
        planning.executemany("INSERT INTO planned_visits VALUES (?, ?, ?)", rows)
    airflow.add_connection("planning", {"conn_type": "sqlite", "host": str(tmp_path / "planning.db")})
    for conn_id in ("fsm_north", "fsm_south"):
        airflow.add_connection(conn_id, service.connection())
    replaced = {
        "/data/": f"{tmp_path}/",
        "list(range(1, 51))": str(properties),
        "deferrable=True,": "deferrable=True, poke_interval=2,",
        **WITH_LEDGER,
    }
    recipes = "".join(block.text for block in blocks("python", pages=[DOCS / "recipes.md"]))
    for old, new in replaced.items():
        assert recipes.count(old) == 1, old
        recipes = recipes.replace(old, new)
    (dags_folder / "recipes.py").write_text(recipes)

    runs = {dag_id: airflow.trigger(dag_id) for dag_id in re.findall(r"^(\w+)\(\)$", recipes, re.MULTILINE)}
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
    assert [(one["key"], one["outcome"]) for one in outcomes] == [("R-1", "created"), ("R-2", "created")]
    assert list((tmp_path / "forms").glob("window_start=*/forms.parquet"))
