"""The commands: what lists them, what they import, and that Airflow has them too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fsm_provider
from fsm_provider.commands.cli import COMMANDS, conn_id_parser, main
from tests.capabilities import PROVIDER_COMMANDS


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def shown(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"], "prog")
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_names_each_command_and_imports_none_of_them():
    code = """
import json, sys
from fsm_provider.commands.cli import main
try:
    main(["--help"])
finally:
    print(json.dumps(list(sys.modules)))
"""
    *output, loaded = run("-c", code).stdout.splitlines()

    for name, (_, text) in COMMANDS.items():
        assert any(re.fullmatch(f"  {name} +{re.escape(text)}", line) for line in output)
    watched = ("fsm_provider", "airflow", "fastapi")
    ours = {name for name in json.loads(loaded) if name.startswith(watched)}
    assert ours == {"fsm_provider", "fsm_provider.commands", "fsm_provider.commands.cli"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_does_not_import_airflow(command):
    code = """
import sys
from fsm_provider.commands.cli import main
try:
    main([sys.argv[1], "--help"])
finally:
    print([name for name in ("airflow", "sqlalchemy") if name in sys.modules])
"""
    assert run("-c", code, command).stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"airflow-provider-fsm {fsm_provider.__version__}\n"


SUBCOMMANDS = [
    ("watermark", "show"),
    ("watermark", "set"),
    ("ledger", "list"),
    ("ledger", "settle"),
    ("ledger", "forget"),
]


@pytest.mark.parametrize("arguments", [*zip(COMMANDS), *SUBCOMMANDS], ids=" ".join)
def test_each_command_has_a_description_and_examples_under_its_own_name(capsys, arguments):
    text = shown(capsys, *arguments)

    usage = " ".join(("prog", *arguments))
    assert text.startswith(f"usage: {usage} ")
    description, _, examples = text.partition("\n\n")[2].partition("examples:\n")
    assert re.match(r"[A-Z].*\.", description, re.DOTALL)
    assert examples.startswith(f"  {usage}")


@pytest.mark.parametrize("arguments", [[], ["nope"], ["--nope"]])
def test_what_is_no_command_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments, "prog")

    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["a", "--all"], ["--conn-id", "a", "--all"], ["--conn-id", "a", "b"]]
)
def test_two_answers_to_which_connection_are_refused(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])

    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_returns_its_exit_code(capsys):
    assert main(["ledger", "list", "--conn-id", "no_such_connection"]) == 2
    assert "no_such_connection" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_fake_without_its_extra_says_what_to_install(package):
    code = """
import sys
from fsm_provider.commands.cli import main
sys.modules[sys.argv[1]] = None
exit(main(["fake"]))
"""
    result = run("-c", code, package)

    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.endswith(
        "; install it with: pip install 'airflow-provider-fsm[testing]'\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_output_that_cannot_be_written_is_an_error():
    code = (
        "from fsm_provider.commands.cli import exit_code_of as run; exit(run(lambda: print() or 0))"
    )
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (result.returncode, result.stderr) == (2, "[Errno 28] No space left on device\n")


@pytest.fixture
def airflow(tmp_path):
    def run_airflow(*arguments):
        return run("-m", "airflow", *arguments, AIRFLOW_HOME=str(tmp_path))

    return run_airflow


def test_every_airflow_accepts_the_provider_and_has_its_commands_since_it_can(airflow):
    command = ("fsm", "ledger", "list") if PROVIDER_COMMANDS.is_there else ()
    result = airflow(*command, "--help")

    assert result.returncode == 0
    assert "fsm_provider" not in result.stderr
    assert result.stdout.startswith("usage: airflow fsm ledger list ") == PROVIDER_COMMANDS.is_there
    assert ("airflow fsm ledger list --uncertain" in result.stdout) == PROVIDER_COMMANDS.is_there


def test_airflow_shows_the_provider(airflow):
    shown = airflow("providers", "get", "airflow-provider-fsm", "--output", "json")

    table = shown.stdout[shown.stdout.index("[{") :]  # Airflow 3.0 logs to stdout
    (provider,) = json.loads(table)
    assert provider["Version"] == fsm_provider.__version__, shown.stderr


@PROVIDER_COMMANDS.needed
def test_a_command_that_airflow_runs_returns_its_exit_code(airflow):
    refused = airflow("fsm", "ledger", "list", "--conn-id", "no_such_connection")

    assert refused.returncode == 2
    assert "no_such_connection" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "conn_id"),
    [([], "fsm_default"), (["fsm_uk"], "fsm_uk"), (["--conn-id", "fsm_uk"], "fsm_uk")],
)
def test_doctor_and_probe_take_the_connection_as_ledger_does_too(arguments, conn_id):
    assert conn_id_parser("prog", "").parse_args(arguments).fsm_conn_id == conn_id
