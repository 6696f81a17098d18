"""CPU of listing forms, streaming them, against other clients."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from tests.benchmarks import pages
from tests.benchmarks.case import (
    BenchmarkError,
    Extent,
    Goal,
    Round,
    Row,
    Tasks,
    least_cpu,
    ratios,
    values_of,
)
from tests.benchmarks.clients import DLT, LISTINGS, OURS, REFERENCE, hide_simplejson
from tests.benchmarks.server import Service

_PAGES_MEASURED = 200
_PEERS = ("HttpHook, untyped", "HttpOperator, untyped", DLT)


def tasks(extent: Extent, port: int) -> Tasks:
    common = {"port": port, "sizes": extent.sizes}
    return {client: {**common, "client": client} for client in LISTINGS}


def measure(port: int, client: str, sizes: Sequence[int]) -> dict[str, float]:
    """List so many pages each, in a process that has imported ``airflow.sdk``, as a task's has.

    A small size is measured over several listings of other pages. What a process does only once
    (building schemas, reading configuration) goes with a listing of one page, which does not count.
    """
    if client != DLT:
        hide_simplejson()
    import_module("airflow.sdk")
    service = Service(port)
    list_pages(service, client, 0, 1)
    measured: dict[str, float] = {}
    for size in sizes:
        gc.collect()
        all_pages = min(max(_PAGES_MEASURED, size), max(sizes))
        starts = range(0, all_pages - size + 1, size)
        cpu = least_cpu(partial(_list_each, service, client, starts, size))
        measured[str(size)] = cpu / len(starts)
    return measured


def _list_each(service: Service, client: str, starts: Sequence[int], size: int) -> None:
    for first in starts:
        list_pages(service, client, first, first + size)


def list_pages(service: Service, client: str, first: int, stop: int) -> None:
    """List the pages from ``first`` up to ``stop``; raise where what comes is not their forms."""
    count = total = 0
    for form in LISTINGS[client](service.url(first, stop)):
        count += 1
        total += form["id"] if isinstance(form, dict) else form.id
    are_all = count == (stop - first) * pages.FORMS_PER_PAGE
    if not are_all or total != pages.sum_of_form_ids(first, stop):
        listed = f"{count} forms with the sum {total}, pages {first} to {stop}"
        raise BenchmarkError(f"{client}: {listed}")


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    table: list[Row] = []
    for size in extent.sizes:
        table += _rows_of(size, rounds)
    return table


def _rows_of(size: int, rounds: Sequence[Round]) -> list[Row]:
    section = f"listing, {size:,} pages"
    ours = values_of(rounds, OURS, str(size))
    reference = values_of(rounds, REFERENCE, str(size))
    goal = Goal(never_above=1.0)
    table = [Row(section, f"{OURS} / {REFERENCE}", "x", ratios(ours, reference), goal)]
    for peer in _PEERS:
        theirs = values_of(rounds, peer, str(size))
        goal = Goal(at_least=1.3)
        table.append(Row(section, f"{peer} / {OURS}", "x", ratios(theirs, ours), goal))
    return table
