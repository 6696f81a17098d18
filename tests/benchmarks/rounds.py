"""Rounds of measurements: each task in a fresh process, in an order that is shuffled for each round."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.case import BenchmarkError, Round, Tasks
from tests.processes import end_on_signals, inherited_environment


def run_rounds(case: str, tasks: Tasks, rounds: int, chance: random.Random) -> list[Round]:
    """Run every task once a round; raise where one fails."""
    measured: list[Round] = []
    with TemporaryDirectory(prefix="fsm-bench-") as home:
        for number in range(1, rounds + 1):
            started = time.monotonic()
            order = chance.sample(list(tasks), len(tasks))
            measured.append({key: _run(case, key, tasks[key], home) for key in order})
            took = time.monotonic() - started
            print(f"{case}: round {number} of {rounds}, {len(tasks)} processes, {took:.0f} s", flush=True)
    return measured


def _run(case: str, key: str, arguments: dict[str, Any], home: str) -> Any:
    """Run a process with Airflow settings of its own, and no proxy on its way to this machine."""
    inherited = inherited_environment()
    kept = {name: value for name, value in inherited.items() if not name.lower().endswith("_proxy")}
    environment = kept | {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # An installed package has its bytecode; without it, imports take three times as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "RUNTIME__DLTHUB_TELEMETRY": "false",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.rounds", case, json.dumps(arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate()
    except BaseException:
        # Not killed, as subprocess.run would: the process may have an Airflow to stop first.
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise BenchmarkError(f"{case}, {key} failed:\n{errors.strip()[-3000:]}")
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    end_on_signals()
    measure = import_module(f"tests.benchmarks.{sys.argv[1]}").measure
    print(json.dumps(measure(**json.loads(sys.argv[2]))))
