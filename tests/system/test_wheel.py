"""The wheel, installed into an empty environment with nothing of this checkout beside it."""

import json
import re
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from fsm_provider import __version__
from tests.processes import inherited_environment
from tests.system.conftest import ROOT

WHAT_AIRFLOW_SEES = """
import json
from airflow.plugins_manager import get_plugin_info
from airflow.providers_manager import ProvidersManager

found = ProvidersManager()
print(json.dumps({
    "provider": "airflow-provider-fsm" in found.providers,
    "hook": found.hooks["fsm"].hook_class_name,
    "link": "fsm_provider.links.FsmJobLink" in found.extra_links_class_names,
    "plugin": "fsm_webhooks" in [plugin["name"] for plugin in get_plugin_info()],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


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


def test_its_description_is_the_readme_without_relative_links_and_pictures(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        metadata = archive.read(f"airflow_provider_fsm-{__version__}.dist-info/METADATA")
    description = message_from_bytes(metadata).get_payload(decode=True).decode()
    readme = (ROOT / "README.md").read_text()

    assert re.findall(r"\]\((?!https?://)[^)]*\)", description) == []
    assert "](docs/jobs.md#" in readme
    assert "which job to look up (docs/jobs.md)" in description
    for shown in (r"^#+ .*", r"^```.*", r"^- \*\*.*?\*\*", r"^\| `.*?` \|"):
        found = re.findall(shown, readme, re.MULTILINE)
        assert re.findall(shown, description, re.MULTILINE) == found != []


def test_airflow_shows_the_installed_provider_and_loads_the_webhook_receiver(wheel: Path) -> None:
    folder, constraints = wheel.parent, ROOT / "constraints" / "airflow.txt"
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "-c", constraints, wheel)

    env = inherited_environment() | {"AIRFLOW_HOME": str(folder / "home")}
    output = run(python, "-c", WHAT_AIRFLOW_SEES, env=env, cwd=folder)

    assert json.loads(output.splitlines()[-1]) == {
        "provider": True,
        "hook": "fsm_provider.hooks.fsm.FsmHook",
        "link": True,
        "plugin": True,
    }
