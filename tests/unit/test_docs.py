"""What the pages show is run, or included from what is tested; what they quote is in the code."""

import ast
import json
import re
import shlex
from importlib.metadata import metadata
from pathlib import Path

import pytest

import fsm_provider
from fsm_provider.api.forms import for_xcom
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.plugins.webhooks.settings import Endpoint, ReceiverSettings, Scheme
from fsm_provider.provider_info import get_provider_info
from fsm_provider.testing import FakeFieldService
from tests.capabilities import SHARED_STREAMS, TASK_SDK
from tests.pages import DOCS, PAGES, ROOT, blocks

TESTED = [ROOT / "example_dags", ROOT / "tests"]
CHECKED_HERE = {"python", "json"}
OUTPUT = {"text"}
"""Shown only, as it holds moments and identifiers; what of it is always the same is compared."""
RUN_IN_A_SHELL = {"bash", "console"}
"""By tests/system/test_docs.py."""


def test_every_block_is_run_or_included():
    unknown = {
        str(block): block.kind
        for block in blocks()
        if block.kind not in CHECKED_HERE | OUTPUT | RUN_IN_A_SHELL and not block.kind.startswith("{")
    }

    assert unknown == {}


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs_as_it_stands(block):
    if "completed_forms" in block.text:
        SHARED_STREAMS.require()
    if "airflow.sdk" in block.text:
        TASK_SDK.require()
    exec(compile(block.text, block.page.name, "exec"), {})


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_a_configuration_that_the_receiver_takes(block):
    assert ReceiverSettings.parse(block.text).endpoints


def test_the_connection_that_is_shown_as_the_fakes_is_its():
    (shown,) = re.findall(
        r"^export (\w+)=(.*)$", "".join(block.text for block in blocks(*OUTPUT)), re.MULTILINE
    )

    assert shown == ("AIRFLOW_CONN_FSM_DEFAULT", shlex.quote(FakeFieldService(port=8400).connection_json()))


def test_a_reference_that_is_shown_has_the_fields_of_one(service, make_client):
    service.add_form()
    (reference,) = for_xcom(make_client(service).list_forms(), "references")

    (shown,) = (json.loads(block.text) for block in blocks(*OUTPUT) if block.text.startswith("["))

    assert [list(one) for one in shown] == [list(reference)]


@pytest.mark.parametrize("block", [one for one in blocks() if "literalinclude" in one.kind], ids=str)
def test_what_is_included_is_there_and_tested(block):
    source = (DOCS / block.kind.partition("} ")[2].removeprefix("/")).resolve()
    text = source.read_text()

    assert any(source.is_relative_to(folder) for folder in TESTED)
    for marker in re.findall(r'^:(?:start-after|end-before): "(.*)"$', block.text, re.MULTILINE):
        assert text.count(f"# {marker}") == 1


@pytest.mark.parametrize("name", [*Endpoint.model_fields, *Scheme.model_fields])
def test_every_setting_of_the_receiver_is_documented(name):
    assert f"`{name}`" in (DOCS / "webhooks.md").read_text()


def test_every_way_to_write_the_connection_makes_the_same(monkeypatch):
    written = [
        word.partition("=")[2]
        for block in blocks("bash", "console")
        for word in shlex.split(block.text, comments=True)
        if word.startswith("AIRFLOW_CONN_FSM_DEFAULT=") and "api.example.com" in word
    ]

    assert len(written) > 3
    for text in written:
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", text)
        settings = FsmHook().client.settings
        assert (settings.base_url, settings.cursor_param) == ("https://api.example.com/v1", "cursor")
        assert settings.token.get_secret_value() == "<ACCESS_TOKEN>"


def test_extras_that_the_pages_install_are_there():
    texts = [page.read_text() for page in PAGES]
    named = {name for text in texts for name in re.findall(r"airflow-provider-fsm\[(\w+)\]", text)}

    assert named <= set(metadata("airflow-provider-fsm").get_all("Provides-Extra"))
    assert "testing" in named


def test_every_marked_region_is_shown():
    shown = set(re.findall(r"\[START (howto_\w+)\]", "".join(page.read_text() for page in DOCS.glob("*.md"))))
    marked = {
        name
        for folder in TESTED
        for path in folder.rglob("*.py")
        for name in re.findall(r"^ *# \[START (howto_\w+)\]$", path.read_text(), re.MULTILINE)
    }

    assert shown == marked


def test_the_readme_names_each_setting_with_its_default():
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (\S+) \|", PAGES[0].read_text(), re.MULTILINE)
    named = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    (connection_type,) = get_provider_info()["connection-types"]
    fields = connection_type["conn-fields"]

    assert list(named) == list(fields)
    for name, field in fields.items():
        default = json.dumps(field["schema"].get("default")).strip('"')
        assert named[name] == ("unset" if default == "null" else f"`{default}`"), name


def test_the_readme_names_each_example():
    named = set(re.findall(r"^\| `(\w+)` \|", PAGES[0].read_text(), re.MULTILINE))

    assert {path.stem for path in (ROOT / "example_dags").glob("*.py")} <= named


def literals() -> list[list[str]]:
    """Give every text in the package, an f-string as the pieces between its values."""
    found = []
    for path in Path(fsm_provider.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            values = node.values if isinstance(node, ast.JoinedStr) else [node]
            pieces = [one.value for one in values if isinstance(one, ast.Constant)]
            found.append([piece for piece in pieces if isinstance(piece, str)])
    return found


LITERALS = ["\0".join(pieces) for pieces in literals() if pieces]
QUOTED = re.findall(r"^\| `(.+?)` \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("message", QUOTED)
def test_the_messages_of_troubleshooting_are_those_of_the_code(message):
    pieces = [piece.strip() for piece in message.split("…") if piece.strip()]
    pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)

    assert any(pattern.search(text) for text in LITERALS)
