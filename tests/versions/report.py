"""What the matrix came to, written down: ``python -m tests.versions.report``.

``make test-matrix`` ends with it. The results that are there replace those in docs/versions.json;
from that the tables are made.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
VERSIONS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("versions.toml").read_text()
)
RESULTS = ROOT / "docs" / "versions.json"
SUITES = {
    "unit": "unit tests",
    "boot": "boot",
    "examples": "examples",
    "kit": "testing kit",
    "kills": "tasks that are killed",
    "watchers": "watchers whose triggerer is killed",
}
CAPABILITIES = ("ledger", "shared poll", "watcher", "receiver", "form")
ONCE = ("once in a run", "once across runs")
"""What the kills of tasks have found, as the stores that the ledger was in."""
BEGIN = "<!-- versions: made by tests/versions/report.py -->"
END = "<!-- /versions -->"
"""Between these stand the tables of a document."""


def read(file: Path) -> tuple[str, str, str, dict[str, Any]]:
    """Give Airflow's version, Python's, the suite, and what came of it."""
    airflow, python, suite = file.stem.replace("-py", "-").split("-")
    (testsuite,) = ElementTree.parse(file).getroot().iter("testsuite")
    tests = int(testsuite.attrib["tests"])
    failed = int(testsuite.attrib["failures"]) + int(testsuite.attrib["errors"])
    skipped = int(testsuite.attrib["skipped"])
    result: dict[str, Any] = {
        "passed": tests - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(float(testsuite.attrib["time"])),
    }
    texts_by_capability: dict[str, list[str]] = {}
    for recorded in testsuite.iter("property"):
        capability, text = json.loads(recorded.attrib["value"])
        texts_by_capability.setdefault(capability, []).append(text)
    if texts_by_capability:
        result["capabilities"] = {
            capability: ", ".join(texts) for capability, texts in texts_by_capability.items()
        }
    return airflow, python, suite, result


def merge(known: dict[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Put new results in the place of old ones; what versions.toml names no more goes.

    A suite that no table shows, such as ``upgrade``, is left out.
    """
    for airflow, python, suite, result in map(read, files):
        if suite not in SUITES:
            continue
        known.setdefault(airflow, {}).setdefault(python, {})[suite] = result
    merged: dict[str, Any] = {}
    for airflow, version in VERSIONS.items():
        if airflow not in known:
            continue
        merged[airflow] = {}
        for python in version["pythons"]:
            if python in known[airflow]:
                merged[airflow][python] = known[airflow][python]
    return merged


def capabilities_for(pythons: dict[str, Any]) -> dict[str, str]:
    """Give what the run on the oldest Python has found."""
    suites = next(iter(pythons.values()))
    measured: dict[str, str] = {}
    for suite in ("boot", "kills"):
        measured |= suites.get(suite, {}).get("capabilities", {})
    return {name: measured.get(name, "not measured") for name in (*CAPABILITIES, *ONCE)}


def short_table(results: dict[str, Any]) -> str:
    """Tabulate which versions ran, and what each can do."""
    lines = _head("Airflow", "Python", *CAPABILITIES, *ONCE)
    missing: set[str] = set()
    for airflow, pythons in results.items():
        cells: list[str] = []
        for name, text in capabilities_for(pythons).items():
            answer, _, reason = text.partition(": ")
            cells.append(answer)
            if answer == "no" and reason:
                missing.add(f"- {name}, where it says no: {reason}.")
        lines.append(_row(airflow, ", ".join(pythons), *cells))
    return "\n".join([*lines, "", *sorted(missing)])


def long_table(results: dict[str, Any]) -> str:
    """The figures: what passed, failed and was skipped."""
    suites_that_ran: set[str] = set()
    for pythons in results.values():
        for suites in pythons.values():
            suites_that_ran.update(suites)
    shown = [suite for suite in SUITES if suite in suites_that_ran]
    titles = [SUITES[suite] for suite in shown]
    lines = _head("Airflow", "Python", *titles)
    for airflow, pythons in results.items():
        for python, suites in pythons.items():
            cells = [_counts(suites.get(suite)) for suite in shown]
            lines.append(_row(airflow, python, *cells))
    return "\n".join(lines)


def _head(*titles: str) -> list[str]:
    return [_row(*titles), "|---" * len(titles) + "|"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _counts(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    return f"{result['passed']}/{result['failed']}/{result['skipped']}"


DOCUMENTS = {
    ROOT / "docs" / "tested.md": short_table,
    ROOT / "docs" / "measured.md": long_table,
}


def between_markers(text: str, table: str) -> str:
    """Put the table where the document has its markers."""
    begin = re.escape(BEGIN)
    end = re.escape(END)
    return re.sub(
        f"({begin}\n).*?(\n{end})",
        lambda match: f"{match[1]}\n{table}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Read what is in build/versions, and write the results and the documents."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = merge(known, sorted((ROOT / "build" / "versions").glob("*.xml")))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for document, table in DOCUMENTS.items():
        document.write_text(between_markers(document.read_text(), table(results)))


if __name__ == "__main__":
    main()
