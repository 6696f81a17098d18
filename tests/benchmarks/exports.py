"""CPU and memory of exporting a listing as files, against dlt and a script of requests and pandas."""

from __future__ import annotations

import gc
import gzip
import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.case import Case, Extent
from tests.benchmarks.pages import FORMS_PER_PAGE, sum_of_form_ids
from tests.benchmarks.resident import peak_mib, reset_peak, resident_mib
from tests.benchmarks.results import Goal, Round, Row, ratios
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import Service

_FORMATS = ("jsonl", "csv", "parquet")
_OURS, _SCRIPT = "ours", "pandas"
_LABELS = {
    _OURS: "FsmFormsToObjectStorageOperator",
    "dlt": "dlt, rest_api to filesystem",
    _SCRIPT: "requests and pandas",
}
_MOST_OF_OTHERS = 1000
"""Pages, up to which all are measured in both orders: with more, a round would take half an hour."""


def measure(port: int, variant: str, pages: int, format: str, shuffled: bool) -> dict[str, float]:
    """Export so many pages; give CPU seconds, and the peak above what was resident after importing."""
    from tests.benchmarks.clients import exports

    export, service = getattr(exports, variant)(), Service(port)
    base_url = service.shuffled(pages) if shuffled else service.listing(0, pages)
    with TemporaryDirectory(prefix="fsm-bench-") as name:
        folder = Path(name)
        gc.collect()
        floor, before = resident_mib(), _cpu()
        reset_peak()
        began = time.perf_counter()
        export(base_url, folder, format)
        measured = {
            "cpu": _cpu() - before,
            "wall": time.perf_counter() - began,
            "mib": peak_mib() - floor,
        }
        _check(folder, format, pages)
    return measured


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _check(folder: Path, format: str, pages: int) -> None:
    files = [file for file in folder.rglob(f"*.{format}*") if "_dlt" not in str(file.relative_to(folder))]
    found = [identifier for file in files for identifier in _identifiers(file, format)]
    if (len(found), sum(found)) != (pages * FORMS_PER_PAGE, sum_of_form_ids(0, pages)):
        raise BenchmarkError(f"{len(found)} forms were exported to {[file.name for file in files]}")


def _identifiers(file: Path, format: str) -> list[int]:
    from pyarrow import csv, json, parquet

    if format == "parquet":
        return parquet.read_table(file, columns=["id"])["id"].to_pylist()
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
        if format == "jsonl":
            table = json.read_json(content, json.ReadOptions(block_size=2**24))
        else:
            table = csv.read_csv(content, convert_options=csv.ConvertOptions(include_columns=["id"]))
    return table["id"].to_pylist()


def _variants(pages: int, shuffled: bool) -> list[str]:
    if pages <= _MOST_OF_OTHERS:
        return list(_LABELS)
    return [_OURS] if shuffled else [_OURS, _SCRIPT]


def _key(variant: str, pages: int, format: str, shuffled: bool) -> str:
    return f"{variant} {pages} {format} {shuffled}"


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(
            _key(variant, pages, format, shuffled),
            "exports:measure",
            {"port": port, "variant": variant, "pages": pages, "format": format, "shuffled": shuffled},
        )
        for pages in extent.exports
        for shuffled in (False, True)
        for variant in _variants(pages, shuffled)
        for format in _FORMATS
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    return [
        row
        for pages in extent.exports
        for format in _FORMATS
        for shuffled in (False, True)
        for row in _rows_for(rounds, pages, format, shuffled)
    ]


def _rows_for(rounds: Sequence[Round], pages: int, format: str, shuffled: bool) -> list[Row]:
    forms = pages * FORMS_PER_PAGE
    section = f"{forms:,} forms{' in no order' if shuffled else ''} to {format}"
    ours = _key(_OURS, pages, format, shuffled)
    rows = []
    for variant in _variants(pages, shuffled):
        label = _LABELS[variant]
        measured = [one[_key(variant, pages, format, shuffled)] for one in rounds]
        held = Goal(at_most=200) if variant == _OURS else None
        rows += [
            Row(section, f"{label}, CPU a form", "us", [one["cpu"] / forms * 1e6 for one in measured]),
            Row(section, f"{label}, wall", "s", [one["wall"] for one in measured]),
            Row(
                section, f"{label}, peak memory above imports", "MiB", [one["mib"] for one in measured], held
            ),
        ]

    def over(key: str) -> list[float]:
        return ratios(rounds, ours, key, lambda task: task["cpu"])

    for variant in _variants(pages, shuffled):
        if variant != _OURS:
            values = over(_key(variant, pages, format, shuffled))
            rows.append(
                Row(section, f"{_LABELS[_OURS]} / {_LABELS[variant]}, CPU", "x", values, Goal(at_most=1))
            )
    if shuffled:
        values = over(_key(_OURS, pages, format, False))
        rows.append(Row(section, f"{_LABELS[_OURS]}, in no order / in order, CPU", "x", values))
    return rows


CASE = Case(_tasks, _rows)
