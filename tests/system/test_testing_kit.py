"""A user's project: its DAGs tested with the pytest plugin, and with a DAG that is broken.

It is the same on every version of Airflow, but that Airflow 2 has no DAG that forms start.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capabilities import ASSETS

STARTED_BY_FORMS = ("dags/remedial_work.py", "tests/test_remedial_work.py")
KIT = Path(__file__).parent / "kit"
LAST_LINE = "create_job >> wait_for_form\n"
BROKEN = [
    "1 error",
    "dags/work_order.py:",
    "name 'wait_for_forms' is not defined",
]


@pytest.mark.parametrize(
    ("last_line", "options", "says"),
    [
        (LAST_LINE, [], ["4 passed" if ASSETS.is_there else "2 passed"]),
        ("create_job >> wait_for_forms\n", ["-k", "waits_for_its_form"], BROKEN),
    ],
    ids=["right", "broken"],
)
def test_a_project(tmp_path: Path, last_line: str, options: list[str], says: list[str]) -> None:
    shutil.copytree(KIT, tmp_path, dirs_exist_ok=True)
    if not ASSETS.is_there:
        for name in STARTED_BY_FORMS:
            (tmp_path / name).unlink()
    dag_file = tmp_path / "dags" / "work_order.py"
    text = dag_file.read_text()
    dag_file.write_text(text.replace(LAST_LINE, last_line))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        *options,
    ]

    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    for text in says:
        assert text in run.stdout, run.stdout
