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

_BEGIN = "<!-- results: begin -->"
_END = "<!-- results: end -->"
_VERDICTS = {True: "met", False: "MISSED", None: ""}
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
    merged = {**reports[0], "rows": [], "runs": []}
    for report in reports:
        merged["rows"] += report["rows"]
        merged["runs"] += report["runs"]
    return merged


def print_table(report: Report) -> None:
    """Print every row with the goal beside it."""
    width = max(len(row["what"]) for row in report["rows"])
    print(f"\n{'':{width}}  {'min':>8} {'median':>8} {'max':>8} {'':7}  goal")
    for section, rows in groupby(report["rows"], itemgetter("section")):
        print(section)
        for row in rows:
            label = f"{row['what']:{width}}"
            numbers = f"{row['min']:8.2f} {row['median']:8.2f} {row['max']:8.2f} {row['unit']:7}"
            goal = f"{row['goal'] or ''} {_VERDICTS[row['met']]}"
            print(f"{label}  {numbers}  {goal}".rstrip())
    print()
    print(_surroundings(report))
    for run in report["runs"]:
        print(run)
    print(_summary(report))


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
        without_seed, _, _ = run.partition(", seed")
        yield f"{without_seed}.  "
    yield f"{_summary(report)}."
    missed = [row for row in report["rows"] if row["met"] is False]
    if missed:
        yield ""
        yield "| goal that is missed | median | min to max | goal |"
        yield "|---|---|---|---|"
    for row in missed:
        yield _line(row)


def _line(row: Report) -> str:
    has_unit = row["unit"] not in ("", "x")
    unit = f" {row['unit']}" if has_unit else ""
    label = f"{row['section']}: {row['what']}"
    span = f"{row['min']:.2f} to {row['max']:.2f}"
    return f"| {label} | {row['median']:.2f}{unit} | {span} | {row['goal'] or ''} |"


def _summary(report: Report) -> str:
    verdicts = [row["met"] for row in report["rows"]]
    met = verdicts.count(True)
    missed = verdicts.count(False)
    return f"{met} of {met + missed} goals met"


def _surroundings(report: Report) -> str:
    versions = [f"{name} {number}" for name, number in report["versions"].items()]
    return f"{report['machine']}, Python {report['python']}; {', '.join(versions)}"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            _, _, name = line.partition(": ")
            return name
    return "unknown CPU"
