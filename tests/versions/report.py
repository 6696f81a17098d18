"""What the matrix came to, written down: ``python -m tests.versions.report``, as ``make
test-matrix`` ends.

The results that are there replace those in docs/versions.json; from that the tables are made.
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
MARKERS = "<!-- versions: made by tests/versions/report.py -->", "<!-- /versions -->"


def read(file: Path) -> tuple[str, str, str, dict[str, Any]]:
    """Give Airflow's version, Python's, the suite, and what came of it."""
    airflow, python, suite = file.stem.replace("-py", "-").split("-")
    (counts,) = ElementTree.parse(file).getroot().iter("testsuite")
    number = {name: int(counts.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    found = {
        "passed": number["tests"] - failed - number["skipped"],
        "failed": failed,
        "skipped": number["skipped"],
        "seconds": round(float(counts.attrib["time"])),
    }
    noted: dict[str, list[str]] = {}
    for one in counts.iter("property"):
        capability, text = json.loads(one.attrib["value"])
        noted.setdefault(capability, []).append(text)
    capabilities = {capability: ", ".join(texts) for capability, texts in noted.items()}
    return airflow, python, suite, found | ({"capabilities": capabilities} if noted else {})


def merge(known: dict[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Put new results in the place of old ones, in the order of versions.toml; what it names no
    more goes.
    """
    for airflow, python, suite, found in map(read, files):
        known.setdefault(airflow, {}).setdefault(python, {})[suite] = found
    return {
        airflow: {
            python: known[airflow][python]
            for python in version["pythons"]
            if python in known[airflow]
        }
        for airflow, version in VERSIONS.items()
        if airflow in known
    }


def capabilities_for(pythons: dict[str, Any]) -> dict[str, str]:
    """Give what the run on the oldest Python has found."""
    suites = next(iter(pythons.values()))
    found = {
        **suites.get("boot", {}).get("capabilities", {}),
        **suites.get("kills", {}).get("capabilities", {}),
    }
    return {name: found.get(name, "not measured") for name in (*CAPABILITIES, *ONCE)}


def short_table(results: dict[str, Any]) -> str:
    """Tabulate which versions ran, and what each can do."""
    columns = ("Airflow", "Python", *CAPABILITIES, *ONCE)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for airflow, pythons in results.items():
        texts = [text.partition(":")[0] for text in capabilities_for(pythons).values()]
        lines.append(f"| {airflow} | {', '.join(pythons)} | {' | '.join(texts)} |")
    missing = {
        f"- {name}, where it says no: {text.partition(': ')[2]}."
        for pythons in results.values()
        for name, text in capabilities_for(pythons).items()
        if text.startswith("no: ")
    }
    return "\n".join([*lines, "", *sorted(missing)])


def long_table(results: dict[str, Any]) -> str:
    """The figures: what passed, failed and was skipped."""
    titles = [title for suite, title in SUITES.items() if _ran(results, suite)]
    lines = [f"| Airflow | Python | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for airflow, pythons in results.items():
        for python, suites in pythons.items():
            cells = [_counts(suites.get(suite)) for suite in SUITES if _ran(results, suite)]
            lines.append(f"| {airflow} | {python} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ran(results: dict[str, Any], suite: str) -> bool:
    return any(suite in suites for pythons in results.values() for suites in pythons.values())


def _counts(found: dict[str, Any] | None) -> str:
    return (
        ""
        if found is None
        else "/".join(str(found[name]) for name in ("passed", "failed", "skipped"))
    )


DOCUMENTS = {
    ROOT / "docs" / "tested.md": lambda results: f"{short_table(results)}\n\n{long_table(results)}",
}


def between_markers(text: str, table: str) -> str:
    """Put the table where the document has its markers."""
    begin, end = map(re.escape, MARKERS)
    return re.sub(
        f"({begin}\n).*?(\n{end})",
        lambda found: f"{found[1]}\n{table}\n{found[2]}",
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
