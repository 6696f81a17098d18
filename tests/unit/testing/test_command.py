"""``python -m fsm_provider fake``: what exists, what fails, and what is refused."""

import json
import shlex
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

    def __init__(self, process, exports):
        self.output = process.stdout
        self.url = process.stdout.readline().split()[4].rstrip(",")
        lines = [shlex.split(process.stdout.readline()) for _ in range(exports)]
        self.variables = dict(assignment.split("=", 1) for _, assignment in lines)
        self.connection = json.loads(self.variables.pop("AIRFLOW_CONN_FSM_DEFAULT"))

    def __call__(self, method, path, **headers):
        headers["Authorization"] = f"Bearer {self.connection['password']}"
        body = {} if method == "POST" else None
        return requests.request(method, self.url + path, headers=headers, json=body, timeout=5)


@contextmanager
def fake(*arguments, exports=1):
    command = [sys.executable, "-m", "fsm_provider", "fake", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Fake(process, exports)
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def test_it_serves_and_says_what_happens_until_it_is_interrupted():
    options = (
        "--form-name=Sign-off",
        "--cursor-param=after",
        "--idempotency-header=X-Key",
        "--token=it's",
    )
    with fake("--form-after=0", *options) as call:
        statuses = [
            call("POST", "/properties/1/jobs", **{"X-Key": "a"}).status_code for _ in range(2)
        ]
        lines = [call.output.readline().split(maxsplit=1)[1] for _ in range(5)]

    assert statuses == [201, 201]
    assert call.connection == {
        "conn_type": "fsm",
        "host": call.url,
        "password": "it's",
        "extra": {"cursor_param": "after", "idempotency_header": "X-Key"},
    }
    job = [line.split(": ")[1] for line in lines if line != "POST /properties/1/jobs 201\n"]
    assert job == ["In Progress\n", "Sign-off\n", "Completed\n"], "one job, since both have one key"


def test_a_restarted_fake_repeats_no_identifier():
    found = set()
    for _ in range(2):
        with fake("--form=7:Warning Notice") as call:
            [form] = call("GET", "/forms").json()["data"]
            job = call("POST", "/properties/7/jobs").json()
            found |= {
                ("form", form["id"]),
                ("job", form["jobDetails"]["jobID"]),
                ("job", job["id"]),
            }

    assert len(found) == 6


def test_the_forms_that_are_named_are_there_without_a_job():
    with fake(
        "--form", "7:Warning Notice", "--form", "8:Notes: final", "--property=7", "--property=8"
    ) as call:
        forms = call("GET", "/forms").json()["data"]
        statuses = [call("POST", f"/properties/{number}/jobs").status_code for number in (7, 8, 9)]

    found = [(form["propertyID"], form["formName"]) for form in forms]
    assert found == [("7", "Warning Notice"), ("8", "Notes: final")]
    assert len({form["jobDetails"]["jobID"] for form in forms}) == 2
    assert statuses == [201, 201, 404]


def test_what_is_to_fail_fails_as_it_is_said_and_as_often():
    faults = (
        *("POST /properties/*/jobs 502 2", "get /forms 429:30", "GET /forms/* 503 always"),
        *("POST /properties/8/jobs reset-before", "POST /properties/9/jobs reset-after"),
        "GET /assetDynamicFieldValues delay:0.4",
    )
    with fake(*(f"--fail={fault}" for fault in faults)) as call:
        for reset in (8, 9):
            with pytest.raises(requests.ConnectionError):
                call("POST", f"/properties/{reset}/jobs")
        jobs = [call("POST", "/properties/9/jobs") for _ in range(3)]
        limited, listed = call("GET", "/forms"), call("GET", "/forms")
        pdfs = [call("GET", "/forms/1/pdf").status_code for _ in range(3)]
        delayed = call("GET", "/assetDynamicFieldValues").elapsed.total_seconds()

    assert [response.status_code for response in jobs] == [201, 201, 201]
    assert jobs[0].json()["id"] % 10_000 == 1002, (
        "the first was stored before its connection was reset"
    )
    assert (limited.status_code, limited.headers["Retry-After"], listed.status_code) == (
        429,
        "30",
        200,
    )
    assert pdfs == [503] * 3
    assert delayed >= 0.4


FAULTS = [
    *(
        "",
        "502",
        "POST /x",
        "POST x 502",
        "POST /x 502 1 1",
        "GRAB /x 502",
        "POST /x 429:",
        "POST /x 199",
    ),
    *("POST /x 600", "POST /x teapot", "POST /x 429:soon", "POST /x 502:-1", "POST /x delay:nan"),
    *("POST /x reset", "POST /x 502 0", "POST /x 502 never"),
]


TARGETS = [
    "",
    "http://127.0.0.1",
    "https://127.0.0.1/",
    "http://127.0.0.1.example.test/",
    "http://localhost/a b",
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[([f"--port={value}"], "argument --port") for value in ("x", "-1", "65536")],
        (["--page-size=0"], "argument --page-size"),
        *[([f"--form-after={value}"], "argument --form-after") for value in ("-1", "nan", "inf")],
        (["--property=seven"], "argument --property"),
        *[([f"--form={value}"], "argument --form") for value in ("7:", "seven:Record")],
        *[
            ([f"--idempotency-header={value}"], "argument --idempotency-header")
            for value in ("", "a b")
        ],
        *[([f"--deliver={url}"], "argument --deliver") for url in TARGETS],
        *[
            ([f"--signing-secret={value}"], "argument --signing-secret")
            for value in ("", "whsec_", "c2hvcnQ=")
        ],
        (["--dialect=xml"], "argument --dialect"),
        *[([f"--fail={value}"], "argument --fail") for value in FAULTS],
        (["--form-name", "A"], "--form-name needs --form-after"),
        (
            ["--property=7", "--form=8:A"],
            "argument --form: 8:A: --property does not name this property",
        ),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_option(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments, "fake")

    assert ended.value.code == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with FakeFieldService() as service:
        port = service.base_url.rpartition(":")[2]

        assert main(["--port", port]) == 1

    assert capsys.readouterr().err == f"--port {port}: Address already in use\n"
