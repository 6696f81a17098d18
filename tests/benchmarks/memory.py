"""Memory of a streaming listing above where it started."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks, values_of
from tests.benchmarks.clients import OURS, hide_simplejson
from tests.benchmarks.listing import list_pages
from tests.benchmarks.server import Service


def tasks(extent: Extent, port: int) -> Tasks:
    return {_key(size): {"port": port, "pages": size} for size in extent.sizes}


def _key(size: int) -> str:
    return f"{OURS}, {size:,} pages"


def measure(port: int, pages: int) -> float:
    """Give the peak of what is resident above the start, which is after a first page, in MiB."""
    hide_simplejson()
    service = Service(port)
    list_pages(service, OURS, 0, 1)
    gc.collect()
    start = set_peak_back()
    list_pages(service, OURS, 0, pages)
    return resident_mib("VmHWM") - start


def set_peak_back() -> float:
    """Give what is resident, in MiB, from which the peak is counted from now on."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_mib("VmRSS")


def resident_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    _, _, rest = status.partition(f"{name}:")
    kib = int(rest.split()[0])
    return kib / 1024


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = "peak memory above start, streaming"
    table: list[Row] = []
    for size in extent.sizes:
        key = _key(size)
        table.append(Row(section, key, "MiB", values_of(rounds, key), Goal(at_most=2)))
    return table
