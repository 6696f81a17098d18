"""The resident memory of this process. Linux only, as it reads ``/proc``."""

from __future__ import annotations

from pathlib import Path


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
