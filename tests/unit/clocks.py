"""An event loop whose clock runs fast: seconds that a trigger waits pass in a fraction of them."""

import asyncio
import selectors

HURRY = 15.0


class HurriedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts on it take ``1 / HURRY`` of their time; threads and sockets are as ever."""

    def __init__(self):
        super().__init__(HurriedSelector())

    def time(self):
        return super().time() * HURRY


class HurriedSelector(selectors.DefaultSelector):
    def select(self, timeout=None):
        return super().select(timeout if timeout is None else timeout / HURRY)


def run_hurried(coroutine):
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        return runner.run(coroutine)
