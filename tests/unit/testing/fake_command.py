"""The fake as a command, ``python -m fsm_provider fake``, in a process of its own."""

import json
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import requests


class FakeCommand:
    """A client of a fake that runs as a command.

    :param exports: how many lines the command prints with a variable to export.
    """

    def __init__(self, process, exports):
        self.output = process.stdout
        self.url = process.stdout.readline().split()[4].rstrip(",")
        self.variables = {}
        for _ in range(exports):
            _, assignment = shlex.split(process.stdout.readline())
            name, value = assignment.split("=", 1)
            self.variables[name] = value
        self.connection = json.loads(self.variables.pop("AIRFLOW_CONN_FSM_DEFAULT"))

    def __call__(self, method, path, **headers):
        headers["Authorization"] = f"Bearer {self.connection['password']}"
        body = {} if method == "POST" else None
        return requests.request(method, self.url + path, headers=headers, json=body, timeout=5)


@contextmanager
def running_fake(*arguments, exports=1):
    """Run the command, and interrupt it at the end."""
    command = [sys.executable, "-m", "fsm_provider", "fake", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FakeCommand(process, exports)
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
