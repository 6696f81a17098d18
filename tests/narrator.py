"""Tells on the screen, step by step, what a demonstration or a long test does."""

import time
from collections.abc import Iterable, Sequence


class Narrator:
    """Prints one line per step, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def say(self, who: str, what: str) -> None:
        """Print a line at once, also into a pipe."""
        print(f"{self.seconds:6.1f} s  {who:<16}{what}", flush=True)

    def show(self, rows: Sequence[Sequence[object]]) -> None:
        """Print what came out as a table."""
        columns = zip(*rows, strict=True)
        widths = [_width(column) for column in columns]
        print()
        for row in rows:
            cells = [_text(value).ljust(width) for value, width in zip(row, widths, strict=True)]
            line = "  ".join(cells)
            print(f"  {line}".rstrip())
        print(flush=True)


def _width(column: Iterable[object]) -> int:
    return max(len(_text(value)) for value in column)


def _text(value: object) -> str:
    return "" if value is None else str(value)
