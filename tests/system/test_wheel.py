"""The wheel, installed into an empty environment with nothing of this checkout beside it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from fsm_provider import __version__
from tests.processes import inherited_environment
from tests.system.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Callable[..., str]:
    """Runs a program of an environment that holds the wheel and what it depends on."""
    folder = wheel.parent
    run(sys.executable, "-m", "venv", folder / "venv")
    constraints = ROOT / "constraints" / "airflow.txt"
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "-c", constraints, wheel)
    env = inherited_environment() | {"AIRFLOW_HOME": str(folder / "home")}
    return lambda program, *arguments: run(folder / "venv/bin" / program, *arguments, env=env, cwd=folder)


def run(*command: str | Path, **kwargs) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, **kwargs)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    here = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "fsm_provider").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    about = f"airflow_provider_fsm-{__version__}.dist-info"

    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = archive.read(f"{about}/METADATA").decode()
        entry_points = archive.read(f"{about}/entry_points.txt").decode()

    assert wheel.name == f"airflow_provider_fsm-{__version__}-py3-none-any.whl"
    assert {name for name in files if not name.startswith(about)} == here
    assert here >= {"fsm_provider/py.typed", "fsm_provider/testing/openapi.json"}
    assert f"{about}/licenses/LICENSE" in files
    assert f"\nVersion: {__version__}\n" in metadata
    assert {line for line in entry_points.splitlines() if line.startswith("[")} == {
        "[airflow.plugins]",
        "[apache_airflow_provider]",
        "[pytest11]",
    }


@pytest.mark.parametrize(
    ("list_for", "shows"),
    [
        ("list", "airflow-provider-fsm"),
        ("hooks", "fsm_provider.hooks.fsm.FsmHook"),
        ("links", "fsm_provider.links.FsmJobLink"),
    ],
)
def test_airflow_shows_the_installed_provider(
    installed: Callable[..., str], list_for: str, shows: str
) -> None:
    assert shows in installed("airflow", "providers", list_for, "--output", "json")


def test_airflow_loads_the_webhook_receiver(installed: Callable[..., str]) -> None:
    assert "fsm_webhooks" in installed("airflow", "plugins", "--output", "json")
