"""What the wheel holds. Installed into an empty environment, it is tried by ``make newcomer``."""

import re
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from fsm_provider import __version__
from tests.pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    here = files_of_package()
    dist_info = f"airflow_provider_fsm-{__version__}.dist-info"

    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = archive.read(f"{dist_info}/METADATA").decode()
        entry_points = archive.read(f"{dist_info}/entry_points.txt").decode()

    assert wheel.name == f"airflow_provider_fsm-{__version__}-py3-none-any.whl"
    assert {name for name in files if not name.startswith(dist_info)} == here
    assert here >= {"fsm_provider/py.typed", "fsm_provider/testing/openapi.json"}
    assert f"{dist_info}/licenses/LICENSE" in files
    assert f"\nVersion: {__version__}\n" in metadata
    groups = re.findall(r"^\[.*", entry_points, re.MULTILINE)
    assert set(groups) == {
        "[airflow.plugins]",
        "[apache_airflow_provider]",
        "[pytest11]",
    }


def files_of_package() -> set[str]:
    """Give the files of the package in this repository, but for what Python has compiled."""
    names: set[str] = set()
    for path in (ROOT / "fsm_provider").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            names.add(str(path.relative_to(ROOT)))
    return names


def test_its_description_is_the_readme_without_relative_links_and_pictures(wheel: Path) -> None:
    readme = (ROOT / "README.md").read_text()

    with ZipFile(wheel) as archive:
        metadata = archive.read(f"airflow_provider_fsm-{__version__}.dist-info/METADATA")
    description = message_from_bytes(metadata).get_payload(decode=True).decode()

    assert re.findall(r"\]\((?!https?://)[^)]*\)", description) == []
    assert "](docs/jobs.md#" in readme
    assert "which job to look up (docs/jobs.md)" in description
    for shown in (r"^#+ .*", r"^```.*", r"^- \*\*.*?\*\*", r"^\| `.*?` \|"):
        in_readme = re.findall(shown, readme, re.MULTILINE)
        in_description = re.findall(shown, description, re.MULTILINE)
        assert in_readme != []
        assert in_description == in_readme
