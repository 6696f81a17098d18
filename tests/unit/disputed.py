"""DAG files that define one asset, which Airflow reads into its database."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DagReader = Callable[..., None]
DAG_FILE = """
from airflow.sdk import Asset, dag

from fsm_provider.assets.forms import completed_forms


@dag(
    schedule={schedule},
    catchup=False,
    is_paused_upon_creation=False,
)
def {dag_id}():
    pass


{dag_id}()
"""


@contextmanager
def dags_that_define(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagReader]:
    """Have Airflow read DAGs that the asset ``gas`` starts: by their ids, the asset's forms.

    In place of these, the code of a schedule may be given.
    What else is in the folder is read, too.
    """
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.errors import ParseImportError
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "disputed", "classpath": classpath, "kwargs": {"path": str(folder)}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))

    def read(**names_by_dag_id: str) -> None:
        from airflow.cli.cli_parser import get_parser

        for dag_id, names in names_by_dag_id.items():
            is_code = names.startswith(("Asset", "completed_forms"))
            schedule = names if is_code else f'completed_forms("gas", form_names={names!r})'
            text = DAG_FILE.format(dag_id=dag_id, schedule=schedule)
            (folder / f"{dag_id}.py").write_text(text)
        arguments = get_parser().parse_args(["dags", "reserialize"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the command's module warns of what is not installed
            arguments.func(arguments)

    yield read
    with create_session() as session:
        tables = (Scheduled, AssetActive, AssetModel, DagModel, Trigger, DagBundleModel)
        for table in (*tables, ParseImportError):
            session.query(table).delete()


def break_import(file: Path) -> None:
    """Leave a DAG file as it is, but for an import that fails."""
    file.write_text(f"import not_installed\n{file.read_text()}")


def process_files() -> None:
    """Have Airflow's DAG processor read the files once, and note what cannot be imported."""
    from airflow.providers.common.compat.sdk import conf

    command = [sys.executable, "-m", "airflow", "dag-processor", "--num-runs", "1"]
    # It encrypts what this process then reads.
    key = {"AIRFLOW__CORE__FERNET_KEY": conf.get("core", "fernet_key", fallback="")}
    env = {**os.environ, **key}
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=env)
