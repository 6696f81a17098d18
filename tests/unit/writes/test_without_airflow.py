"""The rules of a write, and their model checker, need no Airflow."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NO_AIRFLOW = """
import sys

sys.modules["airflow"] = None
"""
RULES = """
from fsm_provider.writes import ledger

print(len(ledger.RULES))
"""
CHECKER = """
from tests.unit.writes.model import SCENARIOS, Model

wrong, states = Model(**SCENARIOS["two attempts"]).check()
print(wrong, states)
"""


@pytest.mark.parametrize(("program", "output"), [(RULES, "8\n"), (CHECKER, "{} 284\n")])
def test_it_runs_where_airflow_is_not_installed(program, output):
    command = [sys.executable, "-c", NO_AIRFLOW + program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == (output, "")
