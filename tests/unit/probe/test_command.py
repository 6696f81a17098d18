"""The command's output, its exit code, and where it reads the connection."""

import signal
import subprocess
import sys

import pytest

from fsm_provider.commands.cli import main
from fsm_provider.commands.probe import MAX_REQUESTS
from fsm_provider.testing import faults
from tests.unit.conftest import TOKEN


def test_everything_is_found(serve, probe):
    service = serve(cursor_param="startingAfter", page_size_param="perPage")

    probed = probe(service, timeout=5)

    assert probed.code == 0
    assert probed.extra == {
        "timeout": 5,
        "page_size_param": "perPage",
        "page_size": 500,
        "cursor_param": "startingAfter",
        "server_timezone": "UTC",
    }
    assert "perPage=1 gave 1 record, not 10" in probed.line("page_size_param")
    assert "with it the second page followed the first" in probed.line("cursor_param")
    assert f"at most {MAX_REQUESTS} times" in probed.lines[0]
    assert probed.lines[-1].startswith(f"Requests made: {len(probed.requests)}.")


def test_what_it_prints_makes_a_connection_whose_test_passes(serve, probe, connect):
    from fsm_provider.hooks.fsm import FsmHook

    service = serve(cursor_param="page_token", page_size_param="size")
    extra = probe(service).extra
    connect(service, **{**extra, "page_size": 10})

    passed, message = FsmHook().test_connection()
    forms = list(FsmHook().list_forms())

    assert passed is True
    assert message == "The token is accepted, and the second page of forms followed the first."
    assert len(forms) == 25


def test_a_listing_of_assets_that_is_forbidden_leaves_the_zone_unknown(serve, probe):
    service = serve(page_size_param="limit")
    service.fail("GET", "/assetDynamicFieldValues", faults.Status(403), every=True)

    probed = probe(service)

    assert probed.code == 1
    assert probed.unknown.keys() == {"server_timezone"}
    assert "lacks the permission" in probed.unknown["server_timezone"]


def test_a_429_with_a_long_delay_is_reported(serve, probe):
    service = serve()
    service.fail("GET", "/forms", faults.Status(429, retry_after=3600), calls=range(2, 100))

    probed = probe(service)

    assert probed.code == 1
    assert "the service asks to wait 3600 s" in probed.unknown["page_size_param"]
    assert len(probed.requests) <= 8


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "the token is not accepted"),
        (403, "lacks the permission"),
        (404, "host"),
    ],
)
def test_a_service_that_refuses_everything_ends_with_code_2(serve, probe, status, says):
    service = serve()
    service.fail("*", "*", faults.Status(status), every=True)

    probed = probe(service)

    assert probed.code == 2
    assert says in probed.error


def test_a_connection_that_is_not_there_is_named(capsys):
    assert main(["probe", "no_such_connection"]) == 2
    assert "no_such_connection" in capsys.readouterr().err


def test_an_interrupted_command_says_so_in_one_line(serve, tmp_path):
    service = serve()
    service.fail("GET", "/forms", faults.Delay(60), calls=range(2, 100))
    environment = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(),
        "PATH": "",
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "fsm_provider", "probe"],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What is started in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert any(line.startswith("The connection works. ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)

    assert process.returncode == 130
    assert error.splitlines()[-1] == "Interrupted"
    assert "Traceback" not in error


IN_A_DATABASE = """
import sys
from airflow.utils.db import initdb
from airflow.models import Connection
from airflow.utils.session import create_session
from fsm_provider.commands.probe import main

initdb()
with create_session() as session:
    session.add(Connection.from_json(sys.argv[1], conn_id="fsm_ours"))
sys.exit(main(["fsm_ours"], "probe"))
"""


def test_the_command_reads_a_connection_of_airflows_database(serve, tmp_path):
    service = serve(cursor_param="after")
    environment = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PATH": "",
    }
    command = [sys.executable, "-c", IN_A_DATABASE, service.connection_json()]

    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert result.returncode == 1, result.stderr
    assert "cursor_param is after" in result.stdout
    assert TOKEN not in result.stdout
    assert TOKEN not in result.stderr
