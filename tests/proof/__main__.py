"""``python -m tests.proof [--seed N] [--line 'states create']``: exit code 1 if a line is wrong."""

import argparse
import os
import sys
import tempfile
import time

from tests.proof.lines import BY_NAME
from tests.proof.report import (
    SHARE,
    Line,
    are_right,
    proof,
    report_of_line,
    results_in_processes,
)

SEED = 1


def main(arguments: list[str] | None = None) -> int:
    """Print the proof of a seed, or a line; how long it took goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--line", type=line_from, help="the name of a line, to repeat it")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    if options.line is not None:
        results = results_in_processes([options.line])
        text = "\n".join(report_of_line(options.line, results[options.line]))
        is_right = are_right(results)
    else:
        text, is_right = proof(options.seed, SHARE, results_in_processes)
    print(text)
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0 if is_right else 1


def line_from(text: str) -> Line:
    """Read the name of a line, as it is printed."""
    method, _, name = text.partition(" ")
    if method not in BY_NAME or not name:
        raise argparse.ArgumentTypeError(f"{text!r} begins with none of {', '.join(BY_NAME)}")
    return method, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fsm-proof-") as folder:
        os.environ["AIRFLOW_HOME"] = folder
        code = main()
    sys.exit(code)
