"""Chooses lines by a seed, runs them in some processes, and prints what they say.

What is printed depends on the seed alone.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from tests.proof.lines import BY_NAME, METHODS, Method, Result

SHARE = {"forms": 5, "watcher": 3, "deliveries": 6}
"""How many lines are chosen, where not all are."""
PROCESSES = 2
Line = tuple[str, str]
"""A method, and the name of a line of it."""


class Chosen:
    """The lines of a method that a seed chooses."""

    def __init__(self, method: Method, seed: int, share: int | None) -> None:
        # By method, so that none depends on how many another has.
        chance = random.Random(f"{seed} {method.name}")
        cases = method.cases(chance)
        self.method = method
        self.total = len(cases)
        self.names = cases
        if share is not None and share < self.total:
            places = sorted(chance.sample(range(self.total), share))
            self.names = [cases[place] for place in places]

    def lines(self) -> list[Line]:
        """Give what :func:`result_of` takes."""
        return [(self.method.name, name) for name in self.names]


def chosen_by(seed: int, share: Mapping[str, int]) -> list[Chosen]:
    """Choose lines of each method."""
    return [Chosen(method, seed, share.get(method.name)) for method in METHODS]


def proof(
    seed: int, share: Mapping[str, int], run: Callable[[list[Line]], dict[Line, Result]]
) -> tuple[str, bool]:
    """Run what a seed chooses; return the text, and whether no line is wrong."""
    chosen = chosen_by(seed, share)
    lines: list[Line] = []
    for part in chosen:
        lines += part.lines()
    results = run(lines)
    return "\n".join(report(seed, chosen, results)), are_right(results)


def are_right(results: Mapping[Line, Result]) -> bool:
    """Return whether no line is wrong."""
    return all(result.is_right for result in results.values())


def result_of(line: Line) -> Result:
    """Run a line in this process."""
    method, name = line
    return BY_NAME[method].run(name)


def results_in_processes(lines: list[Line]) -> dict[Line, Result]:
    """Run lines in processes that have an Airflow each; those that use its database in one."""
    with_database = [line for line in lines if BY_NAME[line[0]].has_an_airflow]
    with tempfile.TemporaryDirectory(prefix="fsm-proof-") as folder:
        pool = ProcessPoolExecutor(
            PROCESSES, get_context("spawn"), initializer=_begin, initargs=(folder,)
        )
        with pool:
            of_database = pool.submit(_results_with_database, with_database)
            others: dict[Line, Future[Result]] = {}
            for line in lines:
                if line not in with_database:
                    others[line] = pool.submit(result_of, line)
            results = {line: future.result() for line, future in others.items()}
            return results | of_database.result()


def _begin(folder: str) -> None:
    os.environ["AIRFLOW_HOME"] = f"{folder}/{os.getpid()}"
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"


def _results_with_database(lines: list[Line]) -> dict[Line, Result]:
    if not lines:
        return {}
    from airflow.utils.db import initdb

    initdb()
    return {line: result_of(line) for line in lines}


def report(seed: int, chosen: list[Chosen], results: Mapping[Line, Result]) -> Iterator[str]:
    """Give the lines of the text: a table of each method, and what all have shown."""
    yield f'Seed {seed}. To repeat a line, and see more of it: make prove LINE="states create"'
    shown = [part for part in chosen if part.names]
    for part in shown:
        yield ""
        yield from _report_of_method(part, results)
    yield ""
    wrong = sum(not result.is_right for result in results.values())
    yield f"{len(results)} lines, {wrong} wrong:"
    yield from _table([[part.method.name, _summary(part, results, seed)] for part in shown])


def _report_of_method(part: Chosen, results: Mapping[Line, Result]) -> Iterator[str]:
    yield f"{part.method.title}."
    yield f"Wrong would be: {part.method.wrong}."
    rows = [["line", *part.method.columns]]
    rows += [_row(line, results[line]) for line in part.lines()]
    yield from _table(rows)
    for line in part.lines():
        if not results[line].is_right:
            yield f"WRONG: {' '.join(line)}"
            yield from (f"    {text}" for text in results[line].details)


def _summary(part: Chosen, results: Mapping[Line, Result], seed: int) -> str:
    of_method = [results[line] for line in part.lines()]
    counts: Counter[str] = Counter()
    for result in of_method:
        counts.update(result.counts)
    share = f"all {part.total} {part.method.noun}"
    if len(of_method) < part.total:
        share = f"{len(of_method)} of {part.total} {part.method.noun}, chosen by seed {seed}"
        share += " (make test: all)"
    sums = [f"{count:,} {name}" for name, count in counts.items()]
    wrong = sum(not result.is_right for result in of_method)
    return f"{', '.join([share, *sums])}: {wrong or 'none'} wrong"


def _row(line: Line, result: Result) -> list[str]:
    return [" ".join(line), *result.cells]


def _table(rows: list[list[str]]) -> Iterator[str]:
    """Give the rows with their columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"  {'  '.join(cells).rstrip()}"


def report_of_line(line: Line, result: Result) -> Iterator[str]:
    """Give the lines of the text about a line that was asked for."""
    method, _ = line
    yield from _table([["line", *BY_NAME[method].columns], _row(line, result)])
    yield from (f"    {text}" for text in result.details)
