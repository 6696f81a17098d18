"""An event loop whose clock runs fast: seconds that a trigger waits pass in a fraction of them."""

import asyncio
import selectors

HURRY = 15.0


class HurriedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts on it take ``1 / hurry`` of their time; threads and sockets are as ever."""

    def __init__(self, hurry=HURRY):
        self.hurry = hurry
        super().__init__(HurriedSelector(hurry))

    def time(self):
        return super().time() * self.hurry


class HurriedSelector(selectors.DefaultSelector):
    def __init__(self, hurry):
        super().__init__()
        self.hurry = hurry

    def select(self, timeout=None):
        return super().select(timeout if timeout is None else timeout / self.hurry)


def run_hurried(coroutine, hurry=HURRY):
    with asyncio.Runner(loop_factory=lambda: HurriedLoop(hurry)) as runner:
        return runner.run(coroutine)
