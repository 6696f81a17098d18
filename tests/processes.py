"""For commands and tests that start other processes.

It imports nothing that a measurement would notice.
"""

import os
import signal
import sys
from types import FrameType


def end_on_signals() -> None:
    """Leave every context manager on SIGINT, by KeyboardInterrupt, and SIGTERM, by SystemExit."""
    # A shell that starts a command in the background makes it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def inherited_environment() -> dict[str, str]:
    """Give what a process inherits: nothing of an Airflow that whoever runs the tests may have."""
    inherited: dict[str, str] = {}
    for name, value in os.environ.items():
        is_of_airflow = name.startswith("AIRFLOW")
        if not is_of_airflow:
            inherited[name] = value
    return inherited
