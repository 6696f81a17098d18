"""An event loop whose clock runs fast: seconds that a trigger waits pass in a fraction of them."""

import asyncio
import selectors
from functools import wraps

HURRY = 15.0
LONGEST_STEP = 0.02


class HurriedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts on it take ``1 / hurry`` of their time; threads and sockets are as ever.

    While the machine does other work its clock stands still: a moment would be minutes.
    """

    def __init__(self, hurry=HURRY):
        self.hurry = hurry
        self._now = 0.0
        self._last = super().time()
        super().__init__(HurriedSelector(hurry))

    def time(self):
        now = super().time()
        self._now += min(now - self._last, LONGEST_STEP) * self.hurry
        self._last = now
        return self._now


class HurriedSelector(selectors.DefaultSelector):
    def __init__(self, hurry):
        super().__init__()
        self.hurry = hurry

    def select(self, timeout=None):
        return super().select(
            timeout if timeout is None else min(timeout / self.hurry, LONGEST_STEP)
        )


def run_hurried(coroutine, hurry=HURRY):
    with asyncio.Runner(loop_factory=lambda: HurriedLoop(hurry)) as runner:
        return runner.run(coroutine)


def hurried(hurry=HURRY):
    """Run an asynchronous test on such a loop."""

    def decorate(test):
        @wraps(test)
        def run(**arguments):
            run_hurried(test(**arguments), hurry)

        return run

    return decorate
