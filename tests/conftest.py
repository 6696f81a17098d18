"""For every test: the settings of Airflow, which reads them when it is first imported."""

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
# Over all that Airflow has loaded, garbage collections took an eighth of the time.
gc.set_threshold(20_000)


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end the tests as Ctrl-C does.

    By itself it would leave behind what fixtures have started. Not by SystemExit, which pytest
    would take for the failure of one test, and go on.
    """
    has_workers = bool(config.getoption("numprocesses", None))

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        # Ctrl-C reaches the workers of pytest-xdist too, and they need the 10 s before they are
        # killed.
        if has_workers:
            for worker in psutil.Process().children():
                worker.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
