"""The wheel, installed into an empty environment with nothing of this checkout beside it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.conftest import ROOT


@pytest.fixture(scope="module")
def airflow_command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The ``airflow`` of an environment that holds the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    constraints = ROOT / "constraints" / "airflow-3.3.2.txt"
    run(folder / "venv/bin/pip", "install", "-qq", "-c", constraints, wheel)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env["AIRFLOW_HOME"] = str(folder / "home")
    return lambda *arguments: run(folder / "venv/bin/airflow", *arguments, env=env, cwd=folder)


def run(*command: str | Path, **kwargs) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, **kwargs)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("list_of", "shows"),
    [
        ("list", "airflow-provider-fsm"),
        ("hooks", "fsm_provider.hooks.fsm.FsmHook"),
        ("links", "fsm_provider.links.jobs.FsmJobLink"),
    ],
)
def test_airflow_shows_the_installed_provider(
    airflow_command: Callable[..., str], list_of: str, shows: str
) -> None:
    assert shows in airflow_command("providers", list_of, "--output", "json")


def test_airflow_loads_the_webhook_receiver(airflow_command: Callable[..., str]) -> None:
    assert "fsm_webhooks" in airflow_command("plugins", "--output", "json")
