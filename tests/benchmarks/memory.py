"""Memory of a streaming listing above where it started."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks
from tests.benchmarks.clients import OURS, hide_simplejson
from tests.benchmarks.listing import list_pages
from tests.benchmarks.server import Service


def tasks(extent: Extent, port: int) -> Tasks:
    return {
        f"{OURS}, {size:,} pages, {way}": {"port": port, "pages": size, "way": way}
        for size in extent.sizes
        for way in ("RSS", "tracemalloc")
    }


def measure(port: int, pages: int, way: str) -> float:
    """Give the peak above the start, which is after a first page, in MiB."""
    hide_simplejson()
    service = Service(port)
    list_pages(service, OURS, 0, 1)
    gc.collect()
    if way == "tracemalloc":
        tracemalloc.start()
        list_pages(service, OURS, 0, pages)
        return tracemalloc.get_traced_memory()[1] / 2**20
    reset_peak()
    start = resident_mib()
    list_pages(service, OURS, 0, pages)
    return peak_mib() - start


def resident_mib() -> float:
    """Give what is resident now, in MiB."""
    return _status("VmRSS")


def reset_peak() -> None:
    """Set the peak back to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Give the most that was resident since the peak was set back, in MiB."""
    return _status("VmHWM")


def _status(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section, goal = "peak memory above start, streaming", Goal(at_most=2)
    return [Row(section, key, "MiB", [one[key] for one in rounds], goal) for key in tasks(extent, 0)]
