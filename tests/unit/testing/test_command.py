"""``python -m fsm_provider fake``: what exists, what fails, and what is refused."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import requests

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.__main__ import main, parse_arguments


class Fake:
    """A client of a fake that runs as a command."""

    def __init__(self, first_lines):
        serving, export = first_lines
        self.url = serving.split()[4].rstrip(",")
        self.connection = json.loads(export.partition("=")[2].strip().strip("'"))

    def __call__(self, method, path, **headers):
        headers["Authorization"] = "Bearer fake-token"
        body = {} if method == "POST" else None
        return requests.request(method, self.url + path, headers=headers, json=body, timeout=5)


@contextmanager
def fake(*arguments):
    command = [sys.executable, "-m", "fsm_provider", "fake", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Fake([process.stdout.readline() for _ in range(2)])
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def test_only_the_properties_that_are_named_exist():
    with fake("--property", "7", "--property", "8") as call:
        statuses = [call("POST", f"/properties/{number}/jobs").status_code for number in (7, 8, 9)]

    assert statuses == [201, 201, 404]


def test_the_forms_that_are_named_are_there_without_a_job():
    with fake("--form", "7:Warning Notice", "--form", "8:Notes: final") as call:
        forms = call("GET", "/forms").json()["data"]

    assert [(form["propertyID"], form["formName"]) for form in forms] == [
        ("7", "Warning Notice"),
        ("8", "Notes: final"),
    ]
    assert len({form["jobDetails"]["jobID"] for form in forms}) == 2


def test_what_is_to_fail_fails_as_often_as_is_said():
    jobs, faults = "/properties/7/jobs", ("POST /properties/*/jobs 502 2", "get /forms 429:30")
    with fake(*(f"--fail={fault}" for fault in faults), "--fail", "GET /forms/* 503 always") as call:
        statuses = [call("POST", jobs).status_code for _ in range(3)]
        limited, listed = call("GET", "/forms"), call("GET", "/forms")
        pdfs = [call("GET", "/forms/1/pdf").status_code for _ in range(3)]

    assert statuses == [502, 502, 201]
    assert (limited.status_code, limited.headers["Retry-After"], listed.status_code) == (429, "30", 200)
    assert pdfs == [503] * 3


@pytest.mark.parametrize(("fault", "next_job"), [("reset-before", 1001), ("reset-after", 1002)])
def test_a_reset_comes_before_or_after_the_job_is_stored(fault, next_job):
    with fake("--fail", f"POST * {fault}") as call:
        with pytest.raises(requests.ConnectionError):
            call("POST", "/properties/7/jobs")
        job = call("POST", "/properties/7/jobs").json()

    assert job["id"] == next_job


def test_a_delay_delays():
    with fake("--fail", "GET /forms delay:0.4") as call:
        assert call("GET", "/forms").elapsed.total_seconds() >= 0.4
        assert call("GET", "/forms").elapsed.total_seconds() < 0.4


def test_a_write_takes_effect_once_for_each_key():
    with fake("--idempotency-header", "Idempotency-Key") as call:
        jobs = [call("POST", "/properties/7/jobs", **{"Idempotency-Key": key}).json() for key in "aab"]

        assert [job["id"] for job in jobs] == [1001, 1001, 1002]
        assert call.connection["extra"] == {"idempotency_header": "Idempotency-Key"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("--port", value) for value in ("x", "-1", "65536")],
        *[("--page-size", value) for value in ("0", "many")],
        *[("--form-after", value) for value in ("-1", "nan", "inf", "soon")],
        *[("--property", value) for value in ("-1", "seven", "")],
        *[("--form", value) for value in ("7", "7:", "seven:Record", ":Record")],
        *[("--idempotency-header", value) for value in ("", "a b", "a:b", "\u00e9")],
        ("--dialect", "xml"),
        *[
            ("--fail", value)
            for value in (
                *("", "502", "POST /x", "POST x 502", "P0ST /x 502", "POST /x 502 1 1"),
                *("GRAB /x 502", "POST /x 429:"),
                *("POST /x 199", "POST /x 600", "POST /x teapot", "POST /x 429:soon", "POST /x 502:-1"),
                *(
                    "POST /x delay",
                    "POST /x delay:nan",
                    "POST /x reset",
                    "POST /x 502 0",
                    "POST /x 502 never",
                ),
            )
        ],
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_option(capsys, option, value):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([f"{option}={value}"], "fake")

    assert ended.value.code == 2
    assert f"error: argument {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--form-name", "A"], "--form-name needs --form-after"),
        (
            ["--property", "7", "--form", "8:A"],
            "argument --form: 8:A: --property does not name this property",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments, "fake")

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with FakeFieldService() as service:
        port = service.base_url.rpartition(":")[2]

        assert main(["--port", port]) == 1

    assert capsys.readouterr().err == f"--port {port}: Address already in use\n"
