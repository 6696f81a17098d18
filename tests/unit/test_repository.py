"""What a stranger finds beside the package: workflows, compose.yaml, hooks and pages of rules."""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.__main__ import parse_arguments
from tests import release
from tests.links import broken
from tests.pages import ROOT
from tests.versions.__main__ import runs

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = ["AGENTS.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md"]


def read_yaml(path: Path):
    return yaml.safe_load(path.read_text())


def targets_in(text: str) -> set[str]:
    return set(re.findall(r"\bmake (?:--silent )?([a-z][a-z-]*)", text))


@cache
def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def steps() -> list[dict]:
    """Return the steps of all workflows, and of the action that they share."""
    found = list(read_yaml(GITHUB / "actions" / "python" / "action.yml")["runs"]["steps"])
    for workflow in WORKFLOWS:
        for job in read_yaml(workflow)["jobs"].values():
            found += job["steps"]
    return found


SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-actions": ".github/actions/*/action.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "dependabot": ".github/dependabot.yml",
    "compose-spec": "compose.yaml",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_follows_its_schema(schema):
    pytest.importorskip("check_jsonschema", reason="only in the environment for development")
    files = sorted(ROOT.glob(SCHEMAS[schema]))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]

    check = subprocess.run([*command, *files], capture_output=True, text=True, check=False)

    assert files
    assert check.returncode == 0, check.stdout


def test_the_hooks_can_be_read():
    clientlib = pytest.importorskip(
        "pre_commit.clientlib", reason="only in the environment for development"
    )

    hooks = clientlib.load_config(ROOT / ".pre-commit-config.yaml")["repos"]

    assert {repository["repo"] for repository in hooks} == {"local"}


def test_a_workflow_runs_only_targets_of_make():
    commands = [step["run"] for step in steps() if "run" in step]

    for command in commands:
        assert re.match(r'make |echo "\w+=\$\(make ', command), command
        assert targets_in(command) <= targets()
    assert {"test", "test-system", "docs", "release"} <= targets_in("\n".join(commands))


def test_actions_are_pinned_by_their_major_version():
    for step in steps():
        action = step.get("uses", "./.github/actions/python")
        if action.startswith("./"):
            assert (ROOT / action / "action.yml").exists()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_no_more_than_it_has_to(workflow):
    content = read_yaml(workflow)

    assert content["permissions"] == {"contents": "read"}
    for name, job in content["jobs"].items():
        may_publish = (workflow.stem, name) == ("release", "publish")
        assert job.get("permissions") == ({"id-token": "write"} if may_publish else None)
    assert "secrets." not in workflow.read_text()


def test_the_python_of_the_workflows_is_the_oldest():
    action = read_yaml(GITHUB / "actions" / "python" / "action.yml")
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")

    assert action["inputs"]["beside"]["default"] == oldest
    versions = action["runs"]["steps"][0]["with"]["python-version"].split("\n")
    assert versions == ["${{ inputs.beside }}", oldest, ""]


def test_each_version_that_a_workflow_tests_is_a_session():
    nox = pytest.importorskip("nox", reason="only in the environment for development")
    assert nox
    command = [sys.executable, "-m", "nox", "--list", "--json"]

    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    sessions = {session["session"] for session in json.loads(listed.stdout)}
    of_airflow = {session for session in sessions if session.startswith("airflow(")}
    assert {run["session"] for run in runs()} == of_airflow


@pytest.mark.parametrize(
    "name", ["AGENTS.md", "CONTRIBUTING.md", ".github/PULL_REQUEST_TEMPLATE.md"]
)
def test_the_targets_that_a_page_names_are_there(name):
    commands = re.findall(r"(?:`|^\$ )(make [a-z-]+)", (ROOT / name).read_text(), re.MULTILINE)
    named = targets_in("\n".join(commands))

    assert named
    assert named <= targets()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_links_to_what_is_there(name):
    assert list(broken(ROOT / name, ROOT)) == []


def test_paths_that_the_page_for_agents_names_are_there():
    text = (ROOT / "AGENTS.md").read_text()

    named = re.findall(r"`((?:[\w]+/)+[\w.]*)`", text)
    assert len(named) > 5
    for path in named:
        assert (ROOT / path).exists(), path


def test_nobody_is_named_and_no_address_before_there_is_one():
    """The address is that of [project.urls]; owners are in CODEOWNERS."""
    for path in (*GITHUB.rglob("*"), ROOT / "AGENTS.md", ROOT / "compose.yaml"):
        if path.is_file():
            addresses = re.findall(r"https?://(?!127\.0\.0\.1)\S+|\S+@\S+\.\w+", path.read_text())
            assert addresses == [], path
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    assert all(line.startswith("#") for line in lines) or "urls" in PROJECT["project"]


class TestCompose:
    content = read_yaml(ROOT / "compose.yaml")
    services = content["services"]

    def test_the_image_is_of_the_version_that_the_tests_run_with(self):
        pins = (ROOT / "constraints" / "airflow.txt").read_text()
        (version,) = re.findall(r"^apache-airflow==(.*)$", pins, re.MULTILINE)
        dockerfile = self.services["airflow"]["build"]["dockerfile_inline"]

        assert f"FROM apache/airflow:{version}\n" in dockerfile
        (extras,) = re.findall(r"/opt/fsm\[([\w,]+)\]", dockerfile)
        assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])

    def test_the_image_is_given_what_is_there(self):
        dockerfile = self.services["airflow"]["build"]["dockerfile_inline"]

        for line in re.findall(r"^COPY --chown=\S+ (.+) /opt/\S+$", dockerfile, re.MULTILINE):
            for name in line.split():
                assert (ROOT / name).exists()
        for volume in self.services["airflow"]["volumes"]:
            assert (ROOT / volume.split(":")[0]).is_dir()

    def test_ports_are_those_of_this_machine_alone(self):
        for service in self.services.values():
            for port in service.get("ports", []):
                assert port.startswith("127.0.0.1:")

    def test_the_connection_leads_to_the_fake(self, monkeypatch):
        for name, value in self.services["airflow"]["environment"].items():
            if name.startswith("AIRFLOW_CONN_"):
                monkeypatch.setenv(name, value)

        settings = FsmHook().settings

        fake = FakeFieldService(port=8400).connection()
        assert settings.base_url == fake["host"]
        assert settings.token.get_secret_value() == fake["password"]
        ledger = FsmHook.get_connection(settings.state_conn_id)
        assert (ledger.conn_type, ledger.schema) == ("postgres", "ledger")
        assert self.content["configs"]["ledger"]["content"] == "CREATE DATABASE ledger;"
        assert self.services["fake"]["network_mode"] == "service:airflow"

    def test_the_command_of_the_fake_is_one(self):
        fake = self.services["fake"]
        python, *command = [*fake["entrypoint"], *fake["command"]]

        assert python == "python"
        assert command[:3] == ["-m", "fsm_provider", "fake"]
        arguments = parse_arguments(command[3:], "fake")
        assert arguments.port == 8400
        assert arguments.form_after == 5


def test_a_tag_of_another_version_is_not_released(monkeypatch, tmp_path):
    (tmp_path / "airflow_provider_fsm-0.1.0-py3-none-any.whl").touch()
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setenv("RELEASE_TAG", "v0.2.0")

    with pytest.raises(SystemExit, match=r"should be v0\.1\.0"):
        release.check_tag()


def test_nothing_is_released_without_an_address(monkeypatch, tmp_path):
    (tmp_path / "airflow_provider_fsm-0.1.0-py3-none-any.whl").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setenv("RELEASE_TAG", "v0.1.0")

    with pytest.raises(SystemExit, match=r"\[project\.urls\]"):
        release.check_tag()

    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "any"\n')
    assert release.check_tag() == "v0.1.0"
