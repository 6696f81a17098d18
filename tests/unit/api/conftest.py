"""The throttle's time, in a test's hand."""

import pytest

from fsm_provider.api import throttle


class Clock:
    """A clock that moves only when it is told to, where the throttle looks for the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(throttle, "time", stopped)
    return stopped
