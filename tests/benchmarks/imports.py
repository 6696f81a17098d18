"""CPU of importing a module of ours in a process that has imported ``airflow.sdk``."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks, ratios, values_of
from tests.benchmarks.clients import hide_simplejson

_PACKAGE = Path(__file__).parents[2] / "fsm_provider"
_HOOK = "fsm_provider.hooks.fsm"
_PEER = "requests"


def _modules_of(folder: str) -> list[str]:
    files = sorted((_PACKAGE / folder).glob("[!_]*.py"))
    return [f"fsm_provider.{folder}.{file.stem}" for file in files]


_IN_DAG_FILES = [
    *_modules_of("operators"),
    *_modules_of("sensors"),
    *_modules_of("triggers"),
]


def tasks(extent: Extent, port: int) -> Tasks:
    modules = (*_IN_DAG_FILES, _HOOK, _PEER)
    return {module: {"module": module} for module in modules}


def measure(module: str) -> float:
    """Import a module after ``airflow.sdk``, and give the milliseconds."""
    hide_simplejson()
    import_module("airflow.sdk")
    gc.collect()
    start = time.process_time()
    import_module(module)
    return (time.process_time() - start) * 1000


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = "import over airflow.sdk"
    slowest = [max(measured[module] for module in _IN_DAG_FILES) for measured in rounds]
    label = f"the slowest of {len(_IN_DAG_FILES)} modules of operators, sensors and triggers"
    hook = values_of(rounds, _HOOK)
    peer = values_of(rounds, _PEER)
    return [
        Row(section, label, "ms", slowest, Goal(at_most=10)),
        Row(section, _HOOK, "ms", hook, Goal(at_most=50)),
        Row(section, f"{_HOOK} / {_PEER}", "x", ratios(hook, peer)),
    ]
