"""Services that differ, and the probe's output for them."""

import json
from datetime import timedelta

import pytest

from fsm_provider.commands.cli import main
from fsm_provider.commands.probe import MAX_REQUESTS
from fsm_provider.testing import FakeFieldService
from tests.unit.conftest import TOKEN


@pytest.fixture(scope="module", autouse=True)
def airflow_logs_elsewhere():
    """Airflow logs to the standard output at its import."""
    import airflow.models  # noqa: F401


class Probed:
    """The command's output for a service, and its exit code."""

    def __init__(self, service, capsys):
        self.code = main(["probe"])
        captured = capsys.readouterr()
        self.output = captured.out
        self.error = captured.err
        self.requests = service.requests

        before, _, after = self.output.partition("The connection's extra:\n")
        extra, _, unknown = after.partition("\nCould not be determined:\n")
        self.lines = before[before.find("The connection works. ") :].splitlines()
        self.extra = None
        if extra:
            self.extra = json.loads(extra)
        self.unknown = {}
        for line in unknown.splitlines():
            name, reason = line.removeprefix("- ").split(", because ", 1)
            self.unknown[name] = reason

    def line(self, name):
        [line] = [line for line in self.lines if line.startswith(f"{name} is ")]
        return line


@pytest.fixture
def probe(connect, capsys):
    """Run the command on a service of which the connection has only these settings."""

    def run(service, **extra):
        connect(service, **{"page_size_param": None, "cursor_param": None, **extra})
        probed = Probed(service, capsys)
        assert TOKEN not in probed.output
        assert TOKEN not in probed.error
        assert {request.method for request in probed.requests} <= {"GET"}
        assert len(probed.requests) <= 2 * MAX_REQUESTS
        return probed

    return run


@pytest.fixture
def serve():
    """Start services with the given parameters, with forms a minute apart unless said otherwise."""
    running = []

    def start(forms=25, interval=timedelta(minutes=1), **parameters):
        service = FakeFieldService(token=TOKEN, **{"page_size": 10, **parameters}).start()
        running.append(service)
        service.seed_forms(forms, interval=interval)
        return service

    yield start

    for service in running:
        service.stop()
