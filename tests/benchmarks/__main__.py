"""``python -m tests.benchmarks``: measure, print one table, write JSON.

A goal that is missed is reported; work that was not done as asked fails the command.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from importlib import import_module
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.case import QUICK, BenchmarkError, Extent
from tests.benchmarks.rounds import run_rounds
from tests.benchmarks.server import running_service
from tests.processes import end_on_signals

USUAL_CASES = ("listing", "jobs", "imports", "memory", "walk")
SLOW_CASES = ("bulk", "deliveries", "ledger", "exports", "waiting")
"""These take minutes a round: they are measured only where ``--only`` names them."""
CASES = (*USUAL_CASES, *SLOW_CASES)


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    end_on_signals()
    try:
        if options.results:
            outcomes = [json.loads(file.read_text()) for file in options.results]
            outcome = report.merged(outcomes)
        else:
            outcome = _measure(options)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    report.print_table(outcome)
    if options.docs:
        report.write_results(outcome, options.docs)
    return 0


def _measure(options: argparse.Namespace) -> report.Report:
    extent = QUICK if options.quick else Extent()
    usual_rounds = 1 if options.quick else 5
    rounds = options.rounds or usual_rounds
    chance = random.Random(options.seed)
    outcome = report.surroundings()
    outcome["runs"] = [report.describe_run(rounds, options.seed)]
    outcome["rows"] = []
    print(f"seed {options.seed}", flush=True)
    pages = max(extent.exports) if "exports" in options.only else max(extent.sizes)
    jobs = max(extent.jobs, extent.rows)
    with running_service(pages, jobs) as service:
        for name in options.only:
            case = import_module(f"tests.benchmarks.{name}")
            measured = run_rounds(name, case.tasks(extent, service.port), rounds, chance)
            outcome["rows"] += [row.as_json() for row in case.rows(extent, measured)]
            # What was measured is kept if a later case fails.
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(outcome, indent=1) + "\n")
    print("written:", options.json)
    return outcome


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds of each case (default: 5; with --quick 1)",
    )
    parser.add_argument(
        "--only",
        type=_names,
        default=USUAL_CASES,
        metavar="NAMES",
        help=f"some of {','.join(CASES)} (default: {','.join(USUAL_CASES)})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="little work: to see that it runs",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10**6),
        help="seed for the order of the processes",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("build/bench.json"),
        metavar="FILE",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FILE",
        help="write the results into this document too",
    )
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: report on what --json wrote before, of one run or several",
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        error = f"{', '.join(unknown)}: not one of {', '.join(CASES)}"
        raise argparse.ArgumentTypeError(error)
    return names


if __name__ == "__main__":
    sys.exit(main())
