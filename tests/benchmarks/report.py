"""The report of a run: a table on the screen, JSON, and the results in the documentation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.source import fingerprint

Report = dict[str, Any]
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
_PACKAGES = (
    "airflow-provider-fsm",
    "apache-airflow",
    "apache-airflow-providers-http",
    "dlt",
    "msgspec",
    "pandas",
    "pyarrow",
    "pydantic",
    "requests",
)


def describe_run(rounds: int, seed: int) -> str:
    """Describe a run, so that it can be repeated."""
    command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
    return f"{datetime.now(UTC):%F}, `{command}`: {rounds} rounds, seed {seed}, source {fingerprint()}"


def surroundings() -> Report:
    """Describe the machine and the versions."""
    return {
        "source": fingerprint(),
        "machine": f"{_cpu()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def merged(reports: list[Report]) -> Report:
    """Put the results of several runs together; each keeps its date, command, rounds and seed."""
    versions = {name: number for one in reports for name, number in one["versions"].items()}
    together = {name: [item for one in reports for item in one[name]] for name in ("rows", "costs", "runs")}
    return reports[0] | {"versions": versions} | together


def print_table(report: Report) -> None:
    """Print every row with the goal beside it."""
    width = max(len(row["what"]) for row in report["rows"])
    print(f"\n{'':{width}}  {'min':>8} {'median':>8} {'max':>8} {'':7}  goal")
    for section, rows in groupby(report["rows"], itemgetter("section")):
        print(section)
        for row in rows:
            numbers = " ".join(f"{row[name]:8.2f}" for name in ("min", "median", "max"))
            print(f"{row['what']:{width}}  {numbers} {row['unit']:7}  {_verdict(row)}".rstrip())
    print(f"\n{report['machine']}, Python {report['python']}; {_versions(report)}")
    print("\n".join([*report["runs"], _summary(report)]))


def write_results(report: Report, document: Path) -> None:
    """Replace what stands between the markers of a document."""
    text = document.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"{document} has to hold {_BEGIN} and {_END}, once each")
    head, _, rest = text.partition(_BEGIN)
    tail = rest.partition(_END)[2]
    lines = "\n".join(_markdown(report))
    document.write_text(f"{head}{_BEGIN}\n{lines}\n{_END}{tail}")


def _markdown(report: Report) -> Iterator[str]:
    yield f"{report['machine']}, Python {report['python']}; {_versions(report)}.  "
    for run in report["runs"]:
        yield f"{run.partition(', seed')[0]}.  "
    yield f"{_summary(report).capitalize()}."
    if report["costs"]:
        yield from _costs(report["costs"])
    if missed := [row for row in report["rows"] if row["met"] is False]:
        yield "\n| goal that is missed | median | goal |\n|---|---|---|"
        yield from map(_line, missed)


def _line(row: Report) -> str:
    unit = f" {row['unit']}" if row["unit"] not in ("", "x") else ""
    return f"| {row['section']}: {row['what']} | {row['median']:.2f}{unit} | {row['goal']} |"


def _costs(costs: list[Report]) -> Iterator[str]:
    sizes = sorted({cost["pages"] for cost in costs})
    size = sizes[len(sizes) // 2]
    yield f"\n| streaming {size} pages | CPU against requests.Session | forms per CPU second | connections |"
    yield "|---|---|---|---|"
    for cost in sorted(costs, key=lambda cost: median(cost["ratio"])):
        if cost["pages"] == size:
            per_second = 1000 / median(cost["us_per_form"])
            ratio = f"{median(cost['ratio']):.2f}"
            yield f"| {cost['label']} | {ratio} | {per_second:.0f}k | {cost['connections']:.0f} |"


def _verdict(row: Report) -> str:
    if row["goal"] is None:
        return ""
    return f"{row['goal']} {'met' if row['met'] else 'MISSED'}"


def _summary(report: Report) -> str:
    held = [row["met"] for row in report["rows"] if row["met"] is not None]
    return f"{sum(held)} of {len(held)} goals met"


def _versions(report: Report) -> str:
    return ", ".join(f"{name} {number}" for name, number in report["versions"].items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")
