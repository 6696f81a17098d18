"""What the pages show is run, or a part of what is tested; what they quote is in the code."""

import ast
import inspect
import json
import os
import re
import shlex
from dataclasses import replace
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from shutil import which
from subprocess import check_output
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from sqlalchemy import create_engine

import fsm_provider
from fsm_provider.api import AssetDynamicField, Form, Job, Webhook
from fsm_provider.api.forms import FORM_FILTERS, for_xcom
from fsm_provider.api.models import Usage, wire_name
from fsm_provider.api.payloads import JOB_FIELDS
from fsm_provider.api.request import ApiRequest
from fsm_provider.assets.forms import completed_forms
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.jobs import JobOutcome
from fsm_provider.plugins.webhooks.settings import ReceiverSettings, WebhookEndpoint
from fsm_provider.provider_info import get_provider_info
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.state.database import METADATA
from fsm_provider.state.schema import LEDGER
from fsm_provider.state.task import Task
from fsm_provider.testing import Engineer, FakeFieldService, faults
from fsm_provider.writes.ledger import new_entry
from fsm_provider.writes.sql_ledger import SqlLedger, scope_of
from tests.capabilities import ASSETS, TASK_SDK
from tests.links import broken_below
from tests.listings import LISTINGS
from tests.monitoring.queries import dashboard_queries
from tests.pages import DOCS, PAGES, ROOT, all_blocks, blocks, prose
from tests.snippets import rewritten
from tests.unit.plugins import signing

TESTED = [ROOT / "example_dags", ROOT / "tests"]
CHECKED_HERE = {"python", "json"}
OUTPUT = {"text"}
"""What follows a prompt is run by the tests of that command, and compared but for times."""
RUN_IN_A_SHELL = {"bash", "console"}
"""By tests/system/test_docs.py."""
RUN_IN_A_DATABASE = {"sql"}
"""Those of tables.md, here."""
DRAWN = {"mermaid"}
"""By a code host, and by docs/_ext/diagrams.py; their form is checked here."""
DIAGRAM_OF = {
    "flowchart": re.compile(r"\w+(\W.*)? --+>(\|[^|]+\|)? \w+.*"),
    "gantt": re.compile(r"(dateFormat|axisFormat|section) .+|[^:;#]+ :[^:;#]+"),
    "stateDiagram-v2": re.compile(r"(direction (LR|TB)|(\[\*\]|\w+) --> \w+ : [^:;#]+)"),
    "sequenceDiagram": re.compile(r"(participant|actor|loop|note|alt|else|end|\w+ ?-).*", re.I),
}
"""What each line of a diagram looks like, by the first word of the diagram."""


def texts_of(*kinds: str, **where: Any) -> list[str]:
    """Give the texts of the blocks of some kinds."""
    return [block.text for block in blocks(*kinds, **where)]


def test_every_block_is_run_or_a_part_of_what_is_tested():
    kinds = CHECKED_HERE | OUTPUT | RUN_IN_A_SHELL | RUN_IN_A_DATABASE | DRAWN
    for block in blocks():
        assert block.kind in kinds, block


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs_as_it_stands(block):
    if "completed_forms" in block.text:
        ASSETS.require()
    if "airflow.sdk" in block.text:
        TASK_SDK.require()
    exec(compile(block.text, block.page.name, "exec"), {})


@pytest.mark.parametrize("block", blocks(*DRAWN), ids=str)
def test_a_diagram_has_a_known_kind_and_closes_its_brackets(block):
    first, *lines = block.text.splitlines()
    form_of_line = DIAGRAM_OF[first.split()[0]]

    for line in lines:
        assert form_of_line.fullmatch(line.strip()), line
        for opening, closing in ("[]", "{}", "()"):
            assert line.count(opening) == line.count(closing), line
        assert line.count("|") % 2 == line.count('"') % 2 == 0, line


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_a_configuration_that_the_receiver_takes(block):
    assert ReceiverSettings.parse(block.text).endpoints


def test_the_statements_for_the_ledger_export_its_rows_and_delete_old_ones_of_runs():
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    task = Task("planned", "monday", "create")
    service = "https://api.example.com"
    by_key = scope_of(task, service, by_key=True)
    export, delete = texts_of("sql", pages=[DOCS / "tables.md"])
    stored = [("s", "old", "done"), ("s", "open", "uncertain"), (by_key, "kept", "done")]

    with engine.begin() as connection:
        for scope, key, state in stored:
            entry = new_entry(task, service, ApiRequest("POST", "/x"), key)
            sent = replace(entry, state=state, sent_at=1)
            values = SqlLedger(engine, scope, "service")._row_of(sent)
            connection.execute(LEDGER.insert().values(values))
        before = connection.exec_driver_sql(export).mappings().all()
        connection.exec_driver_sql(delete)
        after = connection.exec_driver_sql(export).mappings().all()

    assert [row["key"] for row in before] == ["old", "open", "kept"]
    assert {row["run_id"] for row in before} == {"monday"}
    assert [row["key"] for row in after] == ["open", "kept"]


def test_the_connection_that_is_shown_as_the_fakes_is_its():
    output = "".join(texts_of(*OUTPUT))
    ((variable, value),) = re.findall(r"^export (\w+)=(.*)$", output, re.MULTILINE)

    assert variable == "AIRFLOW_CONN_FSM_DEFAULT"
    assert value == shlex.quote(FakeFieldService(port=8400).connection_json())


def test_a_reference_that_is_shown_has_the_fields_of_one(service, make_client):
    service.add_form()
    (reference,) = for_xcom(make_client(service).list_forms(), "references")

    (text,) = (text for text in texts_of(*OUTPUT) if text.startswith("["))

    (shown,) = json.loads(text)
    assert list(shown) == list(reference)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_is_the_code_that_is_tested(page):
    """``make snippets`` writes it anew."""
    text = page.read_text()

    assert text == rewritten(text)
    for block in all_blocks(page):
        if block.source is not None:
            assert any(block.source.is_relative_to(folder) for folder in TESTED), block


@pytest.mark.parametrize("name", WebhookEndpoint.model_fields)
def test_every_setting_of_the_receiver_is_documented(name):
    assert f"`{name}`" in (DOCS / "webhooks.md").read_text()


def test_every_way_to_write_the_connection_makes_the_same(monkeypatch):
    words = shlex.split("\n".join(texts_of("bash", "console")), comments=True)
    assigned = [word for word in words if word.startswith("AIRFLOW_CONN_FSM_DEFAULT=")]
    written = [word.partition("=")[2] for word in assigned if "api.example.com" in word]

    assert len(written) > 3
    for text in written:
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", text)
        settings = FsmHook().client.settings
        assert settings.base_url == "https://api.example.com/v1"
        assert settings.cursor_param == "cursor"
        assert settings.token.get_secret_value() == "<ACCESS_TOKEN>"


def test_the_readme_installs_what_the_quickstart_installs():
    """Which ``make newcomer`` runs."""
    (install,) = (text for text in texts_of("bash", pages=[PAGES[0]]) if "pip" in text)

    assert install in texts_of("bash", pages=[DOCS / "quickstart.md"])[0]


@pytest.mark.skipif(not which("openssl"), reason="needs openssl")
def test_the_formulas_of_the_page_give_what_a_sender_signs(tmp_path):
    body = b'{"type": "jobs.created"}'
    environment = os.environ | {"SECRET": "canary"}
    (tmp_path / "body.bin").write_bytes(body)
    shown = texts_of(*OUTPUT, pages=[DOCS / "webhooks.md"])
    (text,) = (text for text in shown if "openssl" in text)
    commands = re.findall(r"^\$ (.*)", text, re.MULTILINE)
    signed = [signing.hexadecimal("canary", body), signing.timed("canary", body, at=1_790_000_000)]

    for command, headers in zip(commands, signed, strict=True):
        printed = check_output(command, shell=True, cwd=tmp_path, env=environment, text=True)
        assert printed.split()[-1] == headers["x-signature"].rpartition("v1=")[2]


def test_extras_that_the_pages_install_are_there():
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"airflow-provider-fsm\[(\w+)\]", text))

    assert named <= set(metadata("airflow-provider-fsm").get_all("Provides-Extra"))
    assert "testing" in named


def test_every_marked_region_is_shown():
    shown = set()
    for page in DOCS.glob("*.md"):
        shown |= set(re.findall(r"<!-- code: \S+ (howto_\w+) -->", page.read_text()))
    marked = set()
    for folder in TESTED:
        for path in folder.rglob("*.py"):
            text = path.read_text()
            marked |= set(re.findall(r"^ *# \[START (howto_\w+)\]$", text, re.MULTILINE))

    assert shown == marked


def test_the_page_of_the_connection_shows_the_settings_as_the_form_does():
    rows = re.findall(
        r"^\| `([a-z_]+)` \| (\S+) \| ([^|]+) \| ([^|]+) \|$",
        (DOCS / "connection.md").read_text(),
        re.MULTILINE,
    )
    (connection_type,) = get_provider_info()["connection-types"]

    shown = []
    for name, field in connection_type["conn-fields"].items():
        default = json.dumps(field["schema"].get("default")).strip('"')
        meaning = field["description"].removesuffix(f" Default: {default}.")
        shown_default = f"`{default}`"
        if default == "null":
            shown_default = "unset"
        shown.append((name, shown_default, field["label"], meaning))
    assert rows == shown


def test_the_page_of_the_examples_names_each_example():
    named = re.findall(r"^\| \[`(\w+)`\]", (DOCS / "examples.md").read_text(), re.MULTILINE)

    examples = {path.stem for path in (ROOT / "example_dags").glob("*.py")}
    assert examples - {"answer_reader"} == set(named)
    assert len(named) == len(set(named))


def section(page: str, heading: str) -> str:
    """Give the text below a heading of a page, up to the next heading."""
    text = (DOCS / page).read_text().split(f"# {heading}\n", 1)[1]
    return re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]


def names_in(table: str, column: int = 0) -> list[str]:
    """Give the names in a column of a table, in code, in their order."""
    names = []
    for line in table.splitlines():
        if line.startswith("|"):
            cells = re.split(r" *\| *", line)[1:]
            names += re.findall(r"`([\w\[\].]+)`", cells[column])
    return names


@pytest.mark.parametrize(
    ("heading", "record"), [("Job record", Job), ("Form record", Form), ("Webhook record", Webhook)]
)
def test_the_page_of_the_service_names_each_field_of_a_record(heading, record):
    named = names_in(section("service.md", heading))

    assert sorted(named) == sorted(map(wire_name, record.model_fields))


def test_the_page_of_the_service_names_each_field_of_an_asset_field():
    fields = [*AssetDynamicField.model_fields, *Usage.model_fields]

    named = names_in(section("service.md", "Asset dynamic field record"))

    assert set(named) == set(map(wire_name, fields))


def test_the_page_of_the_service_names_each_filter_of_the_forms():
    table = section("service.md", "List forms")

    named = dict(zip(names_in(table, 1), names_in(table), strict=True))

    assert named == FORM_FILTERS


@pytest.mark.parametrize(
    ("page", "name", "thing"),
    [
        ("wait.md", "sensor-arguments", FsmFormSensor),
        ("start.md", "asset-arguments", completed_forms),
        ("testing.md", "fake-arguments", FakeFieldService),
        ("testing.md", "engineer-arguments", Engineer),
    ],
)
def test_a_table_of_arguments_is_the_signature(page, name, thing):
    text = (DOCS / page).read_text().split(f"<!-- list: {name} -->\n\n", 1)[1]
    table = text.partition("\n\n")[0]
    own = inspect.unwrap(thing.__init__) if inspect.isclass(thing) else thing
    optional = {}
    for parameter in inspect.signature(own).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "self":
            optional[parameter.name] = parameter.default

    shown = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| \S", table, re.MULTILINE))

    assert list(shown) == list(optional)
    for argument, default in optional.items():
        if isinstance(default, str | float) or default is None:
            assert ast.literal_eval(shown[argument].strip("`")) == default
        elif default is inspect.Parameter.empty:
            assert shown[argument] == "required"


def test_the_table_of_faults_makes_each_with_its_arguments():
    text = (DOCS / "testing.md").read_text().split("<!-- list: faults -->\n\n", 1)[1]
    shown = dict(re.findall(r"^\| `(\w+)\((.*)\)` \| \S", text.partition("\n\n")[0], re.MULTILINE))

    made = {}
    for name in faults.__all__:
        thing = getattr(faults, name)
        if inspect.isclass(thing) and thing not in (faults.Fault, faults.Exchange):
            made[name] = thing
    assert set(shown) == set(made)
    for name, fault in made.items():
        written = [part.partition("=")[0] for part in shown[name].split(", ") if part]
        assert written == list(inspect.signature(fault).parameters)


def test_the_page_of_the_jobs_names_each_field_of_a_payload():
    table = section("jobs.md", "Fields of a job")

    named = names_in(table)
    assert named == list(dict.fromkeys(JOB_FIELDS.values()))
    assert {JOB_FIELDS.get(name, name) for name in names_in(table, 1)} == {*named, "extra_fields"}


def test_the_page_of_many_jobs_names_each_outcome():
    outcomes = get_args(get_type_hints(JobOutcome)["outcome"])

    assert tuple(names_in(section("bulk.md", "Outcomes"))[: len(outcomes)]) == outcomes


def test_the_table_of_folders_names_each_and_nothing_else():
    package = Path(fsm_provider.__file__).parent
    folders = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (table,) = re.findall(r"^\| folder \|.*?\n\n", text, re.MULTILINE | re.DOTALL)

    named = re.findall(r"`([\w.]+/?)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))

    assert sorted(named) == sorted(folders | modules)


def words_of(text: str) -> int:
    return len(text.split())


def test_the_pages_are_short():
    """So that they are read: 14,000 words of prose, and 26,000 with code, tables and diagrams."""
    for_contributors = {"CONTRIBUTING.md", "architecture.md", "decisions.md", "measured.md"}
    pages = [page for page in PAGES if page.name not in for_contributors]

    assert sum(words_of(prose(page)) for page in pages) <= 14_000
    assert sum(words_of(page.read_text()) for page in pages) <= 26_000


def test_the_pages_about_one_subject_are_short():
    """4,150 words each, with code, tables and diagrams."""
    about_writes = ("jobs.md", "bulk.md", "ledger.md", "settle.md", "tables.md", "generic.md")
    about_forms = ("choose.md", "wait.md", "start.md")

    for subject in (about_writes, about_forms):
        assert sum(words_of((DOCS / name).read_text()) for name in subject) <= 4_150


def test_prose_is_what_stands_outside_of_code_and_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Two words.\n\n<!-- code: a.py b -->\n```python\nnot = these\n```\n\n"
        "- An item:\n\n  ```text\n  nor these\n  ```\n\n| nor | these |\n|---|---|\n\n"
        "```mermaid\nflowchart LR\n```\n\nThe end.\n"
    )

    assert prose(page).split() == ["Two", "words.", "-", "An", "item:", "The", "end."]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_files_beside_the_package_link_to_what_is_there(name):
    assert broken_below(ROOT / name) == []


def test_the_newest_version_of_the_changelog_is_this_one():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == fsm_provider.__version__


def test_the_readme_names_the_versions_that_were_tested():
    (named,) = re.findall(r"^Tested on Airflow (.*);", PAGES[0].read_text(), re.MULTILINE)

    assert re.split(", | and ", named) == list(json.loads((DOCS / "versions.json").read_text()))


@cache
def literals() -> list[str]:
    """Return every text in the package, an f-string with NUL between its parts."""
    texts = []
    for path in Path(fsm_provider.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            constants = [part.value for part in parts if isinstance(part, ast.Constant)]
            texts.append("\0".join(part for part in constants if isinstance(part, str)))
    return texts


QUOTED = re.findall(r"^\| `(.+?)` \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("message", QUOTED)
def test_the_messages_of_troubleshooting_are_those_of_the_code(message):
    chunks = [chunk.strip() for chunk in message.split("…") if chunk.strip()]
    pattern = re.compile(".*".join(map(re.escape, chunks)), re.DOTALL)

    assert any(pattern.search(text) for text in literals())


def test_promtool_is_given_each_query_of_the_dashboard():
    """``make test-alerts`` does, which needs Debian's package."""
    file = ROOT / "tests" / "monitoring" / "dashboard_test.yml"

    tested = set()
    for test in yaml.safe_load(file.read_text())["tests"]:
        tested |= {query["expr"] for query in test["promql_expr_test"]}

    assert tested == set(dashboard_queries())


def test_the_page_for_assistants_imports_each_public_class():
    (names,) = texts_of("python", pages=[DOCS / "assistants.md"])

    for kind in ("operators", "sensors", "transfers", "hooks"):
        for line in LISTINGS[kind]():
            name = line.split("`")[1]
            assert re.search(rf"\b{name}\b", names), name
