"""Pytest fixtures to test DAGs: a fake of the service, and an isolated Airflow.

Pytest loads this module by its entry point wherever the package is installed, so it imports neither
Airflow nor FastAPI before a test asks for a fixture.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from fsm_provider.testing.service import FakeFieldService

DAGS_FOLDER = "fsm_dags_folder"
LEDGER = "fsm_fake_ledger"
"""The id of the connection to the ledger of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting ``fsm_dags_folder``."""
    parser.addini(
        DAGS_FOLDER,
        "folder of DAG files to test, relative to the root folder: the tests use an isolated "
        "Airflow, with an AIRFLOW_HOME that is removed at the end; the fixture fsm_dags returns "
        "the DAGs",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set a temporary AIRFLOW_HOME before Airflow is imported, which reads its settings then."""
    name = early_config.getini(DAGS_FOLDER)
    if not name:
        return
    folder = early_config.rootpath / name
    if not folder.is_dir():
        raise pytest.UsageError(f"{DAGS_FOLDER}: there is no folder {folder}")
    home = tempfile.mkdtemp(prefix="fsm-airflow-")
    early_config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    environment = pytest.MonkeyPatch()
    early_config.add_cleanup(environment.undo)
    environment.setenv("AIRFLOW_HOME", home)
    environment.delenv("AIRFLOW_CONFIG", raising=False)
    environment.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    environment.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    environment.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home}/airflow.db")
    environment.setenv(
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC", f"sqlite+aiosqlite:///{home}/airflow.db"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker ``fake_field_service``."""
    config.addinivalue_line(
        "markers",
        "fake_field_service(*, fsm_conn_id='fsm_default', **parameters): the id of the "
        "connection to the fixture of this name, and the parameters of its FakeFieldService, "
        "e.g. engineer",
    )


@pytest.fixture
def fake_field_service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeFieldService]:
    """Serve the field-service API for one test, without records, at AIRFLOW_CONN_FSM_DEFAULT.

    The connection has a ledger in a SQLite file of the test, so each write is sent once, on every
    version of Airflow. A fault that was never used is a warning at the end of the test.

    A marker names another connection, and passes parameters to ``FakeFieldService``::

        @pytest.mark.fake_field_service(fsm_conn_id="fsm_uk", engineer=Engineer(after=0.1))
        def test_the_form_is_filed(fake_field_service, fsm_dags): ...

    ``fake_field_service.fail("GET", "/forms", faults.Status(503))`` makes it fail once; see
    ``fsm_provider.testing.FakeFieldService`` and ``fsm_provider.testing.faults``.
    """
    from fsm_provider.testing.service import FakeFieldService

    parameters: dict[str, Any] = {}
    marker = request.node.get_closest_marker("fake_field_service")
    if marker is not None:
        parameters |= marker.kwargs
    fsm_conn_id = parameters.pop("fsm_conn_id", "fsm_default")
    with FakeFieldService(**parameters) as service:
        connection = service.connection()
        connection["extra"]["state_conn_id"] = LEDGER
        ledger = {"conn_type": "sqlite", "host": str(tmp_path / "fsm_ledger.db")}
        monkeypatch.setenv(f"AIRFLOW_CONN_{fsm_conn_id.upper()}", json.dumps(connection))
        monkeypatch.setenv(f"AIRFLOW_CONN_{LEDGER.upper()}", json.dumps(ledger))
        yield service
        for fault in service.unused_faults:
            warnings.warn(f"A fault of fake_field_service was never used: {fault}", stacklevel=1)


@pytest.fixture(scope="session")
def fsm_dags(request: pytest.FixtureRequest) -> Mapping[str, DAG]:
    """Return the DAGs of the folder ``fsm_dags_folder`` by their ids, in an isolated Airflow.

    ``run = fsm_dags["work_order"].test()`` runs one to its end in this process, without a
    scheduler. The Airflow has a temporary home and an SQLite database, created once per session. A
    file that cannot be imported fails the tests that use this fixture. If ``fsm_dags_folder`` is
    not set, Airflow's settings are unchanged, and this fixture fails.
    """
    if not request.config.getini(DAGS_FOLDER):
        pytest.fail(
            f"{DAGS_FOLDER} is not set: name the folder of your DAG files in pytest's settings"
        )
    _create_database()
    from airflow.models import DagBag

    bag = DagBag()
    if bag.import_errors:
        messages = [f"{file}:\n{error}" for file, error in bag.import_errors.items()]
        pytest.fail("\n".join(messages))
    dags: Mapping[str, DAG] = bag.dags
    return dags


def _create_database() -> None:
    """Create Airflow's tables, as ``airflow db migrate`` does.

    Another process would have to import Airflow once more.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a project may raise on Airflow's
        from airflow.utils.db import initdb

        initdb()
    # Airflow 2 lets alembic configure the root logger, in place of pytest.
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def run_with_completed_forms() -> Iterator[Callable[..., DagRun]]:
    """Run a DAG that ``completed_forms`` starts, as if its assets were polled now.

    Needs Airflow 3.0::

        def test_records_are_filed(fake_field_service, fsm_dags, run_with_completed_forms):
            fake_field_service.add_form(form_name="Gas Safety Record")
            run = run_with_completed_forms(fsm_dags["file_records"])
            assert run.state == "success"

    A form that was in an event of the same DAG in this test is new again once it is updated. For
    the arguments see ``fsm_provider.testing.form_runs.FormRuns.run``.
    """
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    if not AIRFLOW_V_3_0_PLUS:
        pytest.fail(
            "run_with_completed_forms needs Airflow 3.0 or newer: Airflow 2 has no asset watchers"
        )
    from fsm_provider.testing.form_runs import FormRuns

    with closing(FormRuns()) as runs:
        yield runs.run
