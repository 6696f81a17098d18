"""Count the files and functions of the package that one job passes on its way to the wire and back.

``python -m tests.benchmarks.walk`` runs ``FsmCreateJobOperator.execute`` against the fake service, once to
import everything, and then traced.
"""

import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "fsm_provider"


def traced(call: Any) -> dict[str, set[str]]:
    """Return the functions of the package that a call runs, in all threads, by file."""
    passed: dict[str, set[str]] = defaultdict(set)

    def trace(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)) and "/testing/" not in file:
            name = frame.f_code.co_qualname
            if not name.endswith(">"):  # a comprehension, a lambda, or a module
                passed[str(Path(file).relative_to(PACKAGE))].add(name)

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passed


def main() -> None:
    """Print the walk of a job in Airflow's store and in SQLite."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        os.environ["AIRFLOW_CONN_LEDGER"] = json.dumps({"conn_type": "sqlite", "host": f"{home}/ledger.db"})
        from fsm_provider.operators.jobs import FsmCreateJobOperator
        from fsm_provider.testing import FakeFieldService
        from tests.unit.state_store import MemoryStateStore, context_for

        with FakeFieldService() as service:
            for extra in ({}, {"state_conn_id": "ledger"}):
                connection = service.connection()
                connection["extra"] |= extra
                os.environ["AIRFLOW_CONN_FSM_DEFAULT"] = json.dumps(connection)
                for run_id in ("first", "second"):
                    operator = FsmCreateJobOperator(task_id="create", property_id=7, job={"notes": run_id})
                    context = context_for(MemoryStateStore(), run_id=run_id)
                    passed = traced(lambda o=operator, c=context: o.execute(c))
                functions = sum(map(len, passed.values()))
                print(f"{extra or 'in Airflow'}: {len(passed)} files, {functions} functions")
                for file, names in sorted(passed.items()):
                    print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
