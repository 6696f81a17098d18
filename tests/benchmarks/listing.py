"""CPU of listing forms, streaming them, against other clients."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from tests.benchmarks import pages
from tests.benchmarks.case import BenchmarkError, Extent, Goal, Round, Row, Tasks, least_cpu
from tests.benchmarks.clients import DLT, LISTINGS, OURS, REFERENCE, hide_simplejson
from tests.benchmarks.server import Service

_PAGES_MEASURED = 200
_PEERS = ("HttpHook, untyped", "HttpOperator, untyped", DLT)


def tasks(extent: Extent, port: int) -> Tasks:
    return {client: {"port": port, "client": client, "sizes": extent.sizes} for client in LISTINGS}


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
    measured = {}
    for size in sizes:
        gc.collect()
        starts = range(0, min(max(_PAGES_MEASURED, size), max(sizes)) - size + 1, size)
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
    if (count, total) != (
        (stop - first) * pages.FORMS_PER_PAGE,
        pages.sum_of_form_ids(first, stop),
    ):
        raise BenchmarkError(
            f"{client}: {count} forms with the sum {total}, pages {first} to {stop}"
        )


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    return [row for size in extent.sizes for row in _rows_of(size, rounds)]


def _rows_of(size: int, rounds: Sequence[Round]) -> list[Row]:
    def ratios(over: str, under: str) -> list[float]:
        return [measured[over][str(size)] / measured[under][str(size)] for measured in rounds]

    section = f"listing, {size:,} pages"
    return [
        Row(section, f"{OURS} / {REFERENCE}", "x", ratios(OURS, REFERENCE), Goal(never_above=1.0)),
        *(
            Row(section, f"{peer} / {OURS}", "x", ratios(peer, OURS), Goal(at_least=1.3))
            for peer in _PEERS
        ),
    ]
