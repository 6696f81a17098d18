"""What a module of ours adds to a process that has imported ``airflow.sdk``."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import without_simplejson
from tests.benchmarks.resident import resident_mib
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import Task

_HOOK = "fsm_provider.hooks.fsm"
_IN_DAG_FILES = ("operators", "sensors", "triggers")


def measure(module: str) -> dict[str, Any]:
    """Import a module after ``airflow.sdk``."""
    without_simplejson()
    import_module("airflow.sdk")
    gc.collect()
    loaded, resident, start = set(sys.modules), resident_mib(), time.process_time()
    import_module(module)
    return {
        "ms": (time.process_time() - start) * 1000,
        "MiB": resident_mib() - resident,
        "modules": len(set(sys.modules) - loaded),
        "http_libraries": [name for name in ("requests", "aiohttp") if name in sys.modules],
    }


def _modules(most: int | None) -> list[str]:
    package = Path(__file__).parents[2] / "fsm_provider"
    return [
        f"fsm_provider.{folder}.{file.stem}"
        for folder in _IN_DAG_FILES
        for file in sorted((package / folder).glob("[!_]*.py"))[:most]
    ]


def _tasks(extent: Extent, port: int) -> list[Task]:
    modules = [*_modules(extent.modules_per_folder), _HOOK]
    return [Task(module, "imports:measure", {"module": module}) for module in modules]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    modules = _modules(extent.modules_per_folder)
    rows = []
    for quantity, goal in (("ms", Goal(at_most=10)), ("MiB", Goal(at_most=1)), ("modules", Goal(at_most=40))):
        section = f"import over airflow.sdk, {quantity}"
        hook_goal = Goal(at_most=45) if quantity == "ms" else None
        for module, held_against in [*((module, goal) for module in modules), (_HOOK, hook_goal)]:
            values = [measured[module][quantity] for measured in rounds]
            rows.append(Row(section, module.removeprefix("fsm_provider."), quantity, values, held_against))
    rows += [
        _loading("operators, sensors, triggers", modules, ("requests", "aiohttp"), rounds),
        _loading("hooks.fsm", [_HOOK], ("aiohttp",), rounds),
    ]
    return rows


def _loading(what: str, modules: list[str], libraries: Sequence[str], rounds: Sequence[Round]) -> Row:
    counts: list[float] = [
        sum(library in measured[module]["http_libraries"] for module in modules for library in libraries)
        for measured in rounds
    ]
    section = f"imports that load {' or '.join(libraries)}"
    return Row(section, what, "", counts, Goal(at_most=0))


CASE = Case(_tasks, _rows)
