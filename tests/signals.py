"""How a command ends that has started others: in an orderly way, so that it can stop them first."""

import signal
import sys


def end_on_signals() -> None:
    """On SIGINT raise KeyboardInterrupt, on SIGTERM SystemExit, and so leave every context manager."""
    # A shell that starts a command in the background makes it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
