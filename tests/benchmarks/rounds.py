"""Rounds of measurements: each task in a fresh process, in an order that each round shuffles."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from importlib import import_module
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from tests.benchmarks.case import WAITS, BenchmarkError, Round, Tasks
from tests.processes import end_on_signals, inherited_environment


def run_rounds(case: str, tasks: Tasks, rounds: int, chance: random.Random) -> list[Round]:
    """Run every task once a round; raise where one fails."""
    measured: list[Round] = []
    with TemporaryDirectory(prefix="fsm-bench-") as home:
        for number in range(1, rounds + 1):
            started = time.monotonic()
            order = chance.sample(list(tasks), len(tasks))
            measured.append(_take_turns(case, {key: tasks[key] for key in order}, home))
            took = time.monotonic() - started
            text = f"round {number} of {rounds}, {len(tasks)} processes, {took:.0f} s"
            print(f"{case}: {text}", flush=True)
    return measured


def _take_turns(case: str, tasks: Tasks, home: str) -> Round:
    """Run one process at a time.

    One that waits for its turn goes on after the others have had theirs.
    """
    measured: Round = {}
    queue = deque(tasks)
    started: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        errors = stack.enter_context(TemporaryFile("w+"))
        while queue:
            key = queue.popleft()
            if key in started:
                print(file=started[key].stdin, flush=True)
            else:
                started[key] = stack.enter_context(_start(case, tasks[key], home, errors))
                # Not killed, if another has failed: it may have an Airflow to stop first.
                stack.callback(started[key].terminate)
            result = _read_until_turn_or_end(started[key])
            if result is None:
                queue.append(key)
                continue
            if started[key].wait():
                errors.seek(0)
                last_errors = errors.read().strip()[-3000:]
                raise BenchmarkError(f"{case}, {key} failed:\n{last_errors}")
            measured[key] = json.loads(result)
    return measured


def _read_until_turn_or_end(process: subprocess.Popen[str]) -> str | None:
    """Read what a process prints; return its last line, None if it waits for its next turn."""
    assert process.stdout is not None
    line = ""
    for line in process.stdout:
        if line == f"{WAITS}\n":
            return None
    return line


def _start(
    case: str,
    arguments: dict[str, Any],
    home: str,
    errors: IO[str],
) -> subprocess.Popen[str]:
    """Start a process with Airflow settings of its own, and no proxy on its way to this machine."""
    environment = inherited_environment()
    for name in list(environment):
        if name.lower().endswith("_proxy"):
            del environment[name]
    environment |= {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # An installed package has its bytecode; without it, imports take three times as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "RUNTIME__DLTHUB_TELEMETRY": "false",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.rounds", case, json.dumps(arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


if __name__ == "__main__":
    end_on_signals()
    case = import_module(f"tests.benchmarks.{sys.argv[1]}")
    arguments = json.loads(sys.argv[2])
    print(json.dumps(case.measure(**arguments)))
