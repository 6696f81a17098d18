"""For every test: Airflow reads its settings when it is first imported, so they are set before
that.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from types import FrameType
from typing import NoReturn

import psutil
import pytest

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="fsm-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
gc.set_threshold(
    20_000
)  # Over all that Airflow has loaded, garbage collections took an eighth of the time.


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end the tests as Ctrl-C does: by itself it would leave behind what fixtures have
    started.

    Not by SystemExit, which pytest would take for the failure of one test, and go on.
    """
    runs_workers = config.getoption("numprocesses", None)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        # Ctrl-C reaches the workers of pytest-xdist too, and they need the 10 s before they are
        # killed.
        for worker in psutil.Process().children() if runs_workers else ():
            worker.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
