"""A user's project: its DAGs tested with the pytest plugin, as it should be and with one that is
broken.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).parent / "kit"
BROKEN = ["1 error", "dags/work_order.py:", "name 'wait_for_forms' is not defined"]


@pytest.mark.parametrize(
    ("last_line", "options", "says"),
    [
        ("create_job >> wait_for_form\n", [], ["4 passed"]),
        ("create_job >> wait_for_forms\n", ["-k", "waits_for_its_form"], BROKEN),
    ],
    ids=["right", "broken"],
)
def test_a_project(tmp_path: Path, last_line: str, options: list[str], says: list[str]) -> None:
    shutil.copytree(KIT, tmp_path, dirs_exist_ok=True)
    dag_file = tmp_path / "dags" / "work_order.py"
    dag_file.write_text(dag_file.read_text().replace("create_job >> wait_for_form\n", last_line))

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
    output = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False
    ).stdout

    assert [text for text in says if text not in output] == [], output
