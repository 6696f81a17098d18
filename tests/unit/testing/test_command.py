"""``python -m fsm_provider fake``: what exists, what fails, and what is refused."""

import signal

import pytest
import requests

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.__main__ import main, parse_arguments
from tests.unit.testing.fake_command import running_fake


def test_it_serves_and_says_what_happens_until_it_is_interrupted():
    options = [
        "--form-after=0",
        "--form-name=Sign-off",
        "--cursor-param=after",
        "--idempotency-header=X-Key",
        "--token=it's",
    ]
    key = {"X-Key": "a"}

    with running_fake(*options) as call:
        for _ in range(2):
            response = call("POST", "/properties/1/jobs", **key)
            assert response.status_code == 201
        lines = [call.output.readline().split(maxsplit=1)[1] for _ in range(5)]

    assert call.connection == {
        "conn_type": "fsm",
        "host": call.url,
        "password": "it's",
        "extra": {"cursor_param": "after", "idempotency_header": "X-Key"},
    }
    events = [line.split(": ")[1] for line in lines if line != "POST /properties/1/jobs 201\n"]
    assert events == ["In Progress\n", "Sign-off\n", "Completed\n"], (
        "one job, since both have one key"
    )


def test_a_restarted_fake_repeats_no_identifier():
    identifiers = set()
    for _ in range(2):
        with running_fake("--form=7:Warning Notice") as call:
            [form] = call("GET", "/forms").json()["data"]
            job = call("POST", "/properties/7/jobs").json()
        identifiers.add(("form", form["id"]))
        identifiers.add(("job", form["jobDetails"]["jobID"]))
        identifiers.add(("job", job["id"]))

    assert len(identifiers) == 6


def test_the_forms_that_are_named_are_there_without_a_job():
    options = ["--form", "7:Warning Notice", "--form", "8:Notes: final"]
    with running_fake(*options, "--property=7", "--property=8") as call:
        notice, notes = call("GET", "/forms").json()["data"]

        assert call("POST", "/properties/7/jobs").status_code == 201
        assert call("POST", "/properties/8/jobs").status_code == 201
        assert call("POST", "/properties/9/jobs").status_code == 404

    assert notice["propertyID"] == "7"
    assert notice["formName"] == "Warning Notice"
    assert notes["propertyID"] == "8"
    assert notes["formName"] == "Notes: final"
    assert notice["jobDetails"]["jobID"] != notes["jobDetails"]["jobID"]


def test_what_is_to_fail_fails_as_it_is_said_and_as_often():
    options = [
        "--fail=POST /properties/*/jobs 502 2",
        "--fail=get /forms 429:30",
        "--fail=GET /forms/* 503 always",
        "--fail=POST /properties/8/jobs reset-before",
        "--fail=POST /properties/9/jobs reset-after",
        "--fail=GET /assetDynamicFieldValues delay:0.4",
    ]
    with running_fake(*options) as call:
        with pytest.raises(requests.ConnectionError):
            call("POST", "/properties/8/jobs")
        with pytest.raises(requests.ConnectionError):
            call("POST", "/properties/9/jobs")

        jobs = [call("POST", "/properties/9/jobs") for _ in range(3)]
        assert [job.status_code for job in jobs] == [201, 201, 201]
        assert jobs[0].json()["id"] % 10_000 == 1002, (
            "the first was stored before its connection was reset"
        )

        limited = call("GET", "/forms")
        assert limited.status_code == 429
        assert limited.headers["Retry-After"] == "30"
        assert call("GET", "/forms").status_code == 200

        for _ in range(3):
            assert call("GET", "/forms/1/pdf").status_code == 503

        delayed = call("GET", "/assetDynamicFieldValues")
        assert delayed.elapsed.total_seconds() >= 0.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port=x"], "argument --port"),
        (["--port=-1"], "argument --port"),
        (["--port=65536"], "argument --port"),
        (["--page-size=0"], "argument --page-size"),
        (["--form-after=-1"], "argument --form-after"),
        (["--form-after=nan"], "argument --form-after"),
        (["--form-after=inf"], "argument --form-after"),
        (["--property=seven"], "argument --property"),
        (["--form=7:"], "argument --form"),
        (["--form=seven:Record"], "argument --form"),
        (["--idempotency-header="], "argument --idempotency-header"),
        (["--idempotency-header=a b"], "argument --idempotency-header"),
        (["--deliver="], "argument --deliver"),
        (["--deliver=http://127.0.0.1"], "argument --deliver"),
        (["--deliver=https://127.0.0.1/"], "argument --deliver"),
        (["--deliver=http://127.0.0.1.example.test/"], "argument --deliver"),
        (["--deliver=http://localhost/a b"], "argument --deliver"),
        (["--signing-secret="], "argument --signing-secret"),
        (["--signing-secret=whsec_"], "argument --signing-secret"),
        (["--signing-secret=c2hvcnQ="], "argument --signing-secret"),
        (["--dialect=xml"], "argument --dialect"),
        (["--fail="], "argument --fail"),
        (["--fail=502"], "argument --fail"),
        (["--fail=POST /x"], "argument --fail"),
        (["--fail=POST x 502"], "argument --fail"),
        (["--fail=POST /x 502 1 1"], "argument --fail"),
        (["--fail=GRAB /x 502"], "argument --fail"),
        (["--fail=POST /x 429:"], "argument --fail"),
        (["--fail=POST /x 199"], "argument --fail"),
        (["--fail=POST /x 600"], "argument --fail"),
        (["--fail=POST /x teapot"], "argument --fail"),
        (["--fail=POST /x 429:soon"], "argument --fail"),
        (["--fail=POST /x 502:-1"], "argument --fail"),
        (["--fail=POST /x delay:nan"], "argument --fail"),
        (["--fail=POST /x reset"], "argument --fail"),
        (["--fail=POST /x 502 0"], "argument --fail"),
        (["--fail=POST /x 502 never"], "argument --fail"),
        (["--form-version=3"], "argument --form-version"),
        (["--form-layout=html"], "argument --form-layout"),
        (["--answer=Remarks"], "argument --answer: should be QUESTION=ANSWER"),
        (["--answer=Is it?=No"], "argument --answer: no form has the question 'Is it?', only: "),
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
        _, _, port = service.base_url.rpartition(":")

        assert main(["--port", port]) == 1

    assert capsys.readouterr().err == f"--port {port}: Address already in use\n"


def test_the_asset_fields_that_are_named_are_there():
    with running_fake("--asset-field=Make=Baxi,Vaillant", "--asset-field=Fuel") as call:
        make, fuel = call("GET", "/assetDynamicFieldValues").json()["data"]

    assert "Vaillant" in str(make)
    assert "Fuel" in str(fuel)


def test_a_fault_that_nothing_can_meet_is_refused(capsys):
    assert main(["--port=0", "--fail=POST /property/*/jobs 502"]) == 2

    assert (
        "--fail POST /property/*/jobs: the fake answers no such request" in capsys.readouterr().err
    )
