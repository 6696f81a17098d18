"""The report of a run: a table on the screen, JSON, and the results in the documentation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

Report = dict[str, Any]

_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
_PACKAGES = (
    "airflow-provider-fsm",
    "apache-airflow",
    "apache-airflow-providers-http",
    "dlt",
    "pandas",
    "pyarrow",
    "pydantic",
    "requests",
)


def describe_run(rounds: int, seed: int) -> str:
    """Describe a run, so that it can be repeated."""
    command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
    return f"{datetime.now(UTC):%F}, `{command}`: {rounds} rounds, seed {seed}"


def surroundings() -> Report:
    """Describe the machine and the versions."""
    return {
        "machine": f"{_cpu()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def merged(reports: list[Report]) -> Report:
    """Put the results of several runs together; each keeps its date, command, rounds and seed."""
    rows = [row for one in reports for row in one["rows"]]
    runs = [run for one in reports for run in one["runs"]]
    return reports[0] | {"rows": rows, "runs": runs}


def print_table(report: Report) -> None:
    """Print every row with the goal beside it."""
    width = max(len(row["what"]) for row in report["rows"])
    print(f"\n{'':{width}}  {'min':>8} {'median':>8} {'max':>8} {'':7}  goal")
    for section, rows in groupby(report["rows"], itemgetter("section")):
        print(section)
        for row in rows:
            numbers = " ".join(f"{row[name]:8.2f}" for name in ("min", "median", "max"))
            verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
            print(
                f"{row['what']:{width}}  {numbers} {row['unit']:7}  {row['goal'] or ''} {verdict}".rstrip()
            )
    print("\n".join(["", _surroundings(report), *report["runs"], _summary(report)]))


def write_results(report: Report, document: Path) -> None:
    """Replace what stands between the markers of a document."""
    text = document.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"{document} has to hold {_BEGIN} and {_END}, once each")
    head, _, rest = text.partition(_BEGIN)
    tail = rest.partition(_END)[2]
    lines = "\n".join(_markdown(report))
    document.write_text(f"{head}{_BEGIN}\n{lines}\n{_END}{tail}")
    print("written:", document)


def _markdown(report: Report) -> Iterator[str]:
    yield f"{_surroundings(report)}.  "
    for run in report["runs"]:
        yield f"{run.partition(', seed')[0]}.  "
    yield f"{_summary(report)}."
    if missed := [row for row in report["rows"] if row["met"] is False]:
        yield "\n| goal that is missed | median | min to max | goal |\n|---|---|---|---|"
        yield from map(_line, missed)


def _line(row: Report) -> str:
    unit = f" {row['unit']}" if row["unit"] not in ("", "x") else ""
    what, span = f"{row['section']}: {row['what']}", f"{row['min']:.2f} to {row['max']:.2f}"
    return f"| {what} | {row['median']:.2f}{unit} | {span} | {row['goal'] or ''} |"


def _summary(report: Report) -> str:
    held = [row["met"] for row in report["rows"] if row["met"] is not None]
    return f"{sum(held)} of {len(held)} goals met"


def _surroundings(report: Report) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return f"{report['machine']}, Python {report['python']}; {versions}"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU"
    )
