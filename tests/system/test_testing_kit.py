"""A user's project: its DAGs tested with the pytest plugin, as it should be and broken."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

KIT = Path(__file__).parent / "kit"
WORK_ORDER = "tests/test_work_order.py"
LAST_LINE = "    create_job >> wait_for_form\n"
ORDERED_AGAIN = """
    order_again = FsmCreateJobOperator(
        task_id="order_again",
        property_id=7,
        job={"customerReference": "PO-4711"},
        trigger_rule="all_done",
    )
    create_job >> order_again >> wait_for_form
"""


@pytest.fixture
def run_tests(tmp_path: Path) -> Callable[..., str]:
    """Runs the tests of the project on a changed DAG, and gives what pytest says."""
    shutil.copytree(KIT, tmp_path, dirs_exist_ok=True)

    def run(change: str, *files: str) -> str:
        dag_file = tmp_path / "dags" / "work_order.py"
        dag_file.write_text(dag_file.read_text().replace(LAST_LINE, change))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *files]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False).stdout

    return run


def test_the_dags_pass(run_tests: Callable[..., str]) -> None:
    assert "4 passed" in run_tests(LAST_LINE)


def test_a_dag_that_orders_twice_fails(run_tests: Callable[..., str]) -> None:
    output = run_tests(ORDERED_AGAIN, WORK_ORDER)

    assert "2 failed" in output, output
    assert "assert ['PO-4711', 'PO-4711'] == ['PO-4711']" in output


def test_a_dag_that_cannot_be_imported_is_named(run_tests: Callable[..., str]) -> None:
    output = run_tests("    create_job >> wait_for_forms\n", WORK_ORDER)

    assert "2 errors" in output, output
    assert "dags/work_order.py:" in output
    assert "name 'wait_for_forms' is not defined" in output


def test_each_test_of_the_project_has_ten_lines_at_most() -> None:
    tests = [
        test
        for file in (KIT / "tests").glob("test_*.py")
        for test in re.split(r"\n\n\n", file.read_text().strip())[1:]
    ]

    assert len(tests) == 4
    assert max(len(test.splitlines()) for test in tests) <= 10
