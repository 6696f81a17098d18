"""What the commands print."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet_airflow() -> Iterator[None]:
    """Keep Airflow's log out of the standard output, and its warnings and deprecations out of sight."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns, each as wide as its widest cell."""
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Escape what would leave the line or steer the terminal."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def fail(code: int, message: str) -> int:
    """Print a message on the standard error; return the exit code."""
    print(printable(" ".join(message.split())), file=sys.stderr)
    return code
