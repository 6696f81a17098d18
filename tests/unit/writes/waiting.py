"""Waiting for what happens in another thread."""

import threading
import time
from collections.abc import Callable


class Held:
    """Something that waits where it is until the test goes on."""

    def __init__(self) -> None:
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.arrived.set()
        assert self.go_on.wait(30)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
