"""DAGs that completed forms start, run by the pytest plugin in a project of its own."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.capabilities import ASSETS
from tests.pages import DOCS, blocks
from tests.system.examples import EXAMPLES
from tests.versions.examples import STARTED_BY_FORMS

PROJECT = Path(__file__).parent / "form_runs"


def cases_of_project() -> Iterator[tuple[str, str]]:
    """Give the files and names of the project's tests."""
    for file in sorted(PROJECT.glob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE):
            yield file.stem, name


TESTS = list(cases_of_project())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[str]]:
    """The failures of each test of the project."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    for name in STARTED_BY_FORMS:
        (folder / "dags" / f"{name}.py").symlink_to(EXAMPLES / f"{name}.py")
    (on_page,) = blocks("python", pages=[DOCS / "start.md"])
    (folder / "dags" / "on_page.py").write_text(on_page.text)
    run = run_pytest(folder, "--junitxml=results.xml")
    assert run.returncode in (0, 1), run.stdout + run.stderr
    failures_by_test: dict[tuple[str, str], list[str]] = {}
    for case in ElementTree.parse(folder / "results.xml").iter("testcase"):
        name, _, _ = case.attrib["name"].partition("[")
        failures = failures_by_test.setdefault((case.attrib["classname"], name), [])
        for part in case:
            is_failure = part.tag in ("error", "failure")
            if is_failure:
                failures.append(part.text or "")
    return failures_by_test


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


@ASSETS.needed
@pytest.mark.parametrize(
    ("file", "name"),
    TESTS,
    ids=[name.removeprefix("test_") for _, name in TESTS],
)
def test_in_the_project(results: dict[tuple[str, str], list[str]], file: str, name: str) -> None:
    failures = results[file, name]

    assert not failures, "\n".join(failures)


@pytest.mark.skipif(ASSETS.is_there, reason="since Airflow 3.0 there are watchers")
def test_without_watchers_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(run_with_completed_forms): pass\n")

    run = run_pytest(tmp_path)

    assert "run_with_completed_forms needs Airflow 3.0" in run.stdout
    assert run.returncode == 1
