"""For commands and tests that start other processes; it imports nothing that a measurement would
notice.
"""

import os
import signal
import sys


def end_on_signals() -> None:
    """On SIGINT raise KeyboardInterrupt, on SIGTERM SystemExit, and so leave every context manager."""
    # A shell that starts a command in the background makes it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def inherited_environment() -> dict[str, str]:
    """Give what a process inherits; whoever runs the tests may have settings for an Airflow of
    their own.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
