"""Files and functions of the package that one job, one poke of a sensor, and one PDF pass.

``python -m tests.benchmarks.walk`` lists them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks, values_of

_PACKAGE = Path(__file__).parents[2] / "fsm_provider"
_GOALS = {
    "job": {"files": 18, "functions": 110},
    "poke": {"files": 16, "functions": 100},
    "PDF": {"files": 18, "functions": 120},
}
"""The most that each may pass."""


def tasks(extent: Extent, port: int) -> Tasks:
    return {case: {"case": case} for case in _GOALS}


def measure(case: str) -> dict[str, int]:
    passed = _walk(case)
    return {
        "files": len(passed),
        "functions": _number_of_functions(passed),
    }


def _number_of_functions(passed: dict[str, set[str]]) -> int:
    return sum(len(names) for names in passed.values())


def _walk(case: str) -> dict[str, set[str]]:
    """Execute the operator twice, against the fake service: the first time imports everything."""
    from fsm_provider.operators.jobs import FsmCreateJobOperator
    from fsm_provider.sensors.forms import FsmFormSensor
    from fsm_provider.testing import FakeFieldService
    from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
    from tests.unit.state_store import MemoryStateStore, context_for

    with FakeFieldService() as service, tempfile.TemporaryDirectory() as folder:
        os.environ["AIRFLOW_CONN_FSM_DEFAULT"] = service.connection_json()
        passed: dict[str, set[str]] = {}
        for run_id in ("first", "second"):
            form = service.add_form(job_id=7)
            operators: dict[str, Any] = {
                "job": FsmCreateJobOperator(
                    task_id="task",
                    property_id=7,
                    job={"notes": run_id},
                ),
                "poke": FsmFormSensor(
                    task_id="task",
                    job_id=7,
                    since=datetime.now(UTC) - timedelta(hours=1),
                ),
                "PDF": FsmFormPdfsToObjectStorageOperator(
                    task_id="task",
                    forms=[form],
                    destination=folder,
                ),
            }
            context = context_for(MemoryStateStore(), run_id=run_id)
            passed = _traced(operators[case].execute, context)
    return passed


def _traced(call: Callable[[Any], Any], argument: Any) -> dict[str, set[str]]:
    """Give the functions of the package that a call runs, in all threads, by file."""
    passed: dict[str, set[str]] = defaultdict(set)

    def trace(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        is_of_package = file.startswith(str(_PACKAGE)) and "/testing/" not in file
        if event != "call" or not is_of_package:
            return
        name = frame.f_code.co_qualname
        is_function = not name.endswith(">")  # else a comprehension, a lambda, or a module
        if is_function:
            passed[str(Path(file).relative_to(_PACKAGE))].add(name)

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        call(argument)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passed


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    table: list[Row] = []
    for case, goals in _GOALS.items():
        section = f"what a {case} passes"
        for name, most in goals.items():
            values = values_of(rounds, case, name)
            table.append(Row(section, name, "", values, Goal(at_most=most)))
    return table


def _main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        for case in _GOALS:
            passed = _walk(case)
            print(f"{case}: {len(passed)} files, {_number_of_functions(passed)} functions")
            for file, names in sorted(passed.items()):
                print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    _main()
