"""Rounds of measurements: each task in a fresh process, in an order that is shuffled for each round."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.results import Round
from tests.processes import end_on_signals, inherited_environment


class BenchmarkError(Exception):
    """A measured process failed, or did not do the work that it was to be measured at."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one process measures.

    :param work: ``module:function`` in this package; called with ``arguments``, it gives JSON values.
    """

    key: str
    work: str
    arguments: dict[str, Any]


def run_rounds(name: str, tasks: Sequence[Task], rounds: int, chance: random.Random) -> list[Round]:
    """Run every task once a round.

    :raises BenchmarkError: where a task fails.
    """
    measured: list[Round] = []
    with TemporaryDirectory(prefix="fsm-bench-") as home:
        for number in range(1, rounds + 1):
            started = time.monotonic()
            order = chance.sample(tasks, len(tasks))
            measured.append({task.key: _run(task, home) for task in order})
            took = time.monotonic() - started
            print(f"{name}: round {number} of {rounds}, {len(tasks)} processes, {took:.0f} s", flush=True)
    return measured


def _run(task: Task, home: str) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.rounds", task.work, json.dumps(task.arguments)],
        env=_environment(home),
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
        raise BenchmarkError(f"{task.key} failed:\n{errors.strip()[-3000:]}")
    return json.loads(output.splitlines()[-1])


def _environment(home: str) -> dict[str, str]:
    """Give a process Airflow settings of its own, and no proxy on its way to this machine."""
    inherited = inherited_environment()
    kept = {name: value for name, value in inherited.items() if not name.lower().endswith("_proxy")}
    return kept | {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__SECRETS__BACKEND": "tests.benchmarks.secrets_backend.CountingBackend",
        # An installed package has its bytecode; without it, imports take three times as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "RUNTIME__DLTHUB_TELEMETRY": "false",
    }


if __name__ == "__main__":
    end_on_signals()
    _module, _, _function = sys.argv[1].partition(":")
    _work = getattr(import_module(f"tests.benchmarks.{_module}"), _function)
    print(json.dumps(_work(**json.loads(sys.argv[2]))))
