"""The fake on the command line delivers to the receiver, which is configured as the fake prints."""

import json
from itertools import islice, takewhile

from tests.unit.testing.fake_command import running_fake


def test_deliveries_are_recorded_with_what_the_fake_prints(unknown_receiver, asset, monkeypatch):
    asset()
    with running_fake("--form-after=0", f"--deliver={unknown_receiver.url()}", exports=4) as call:
        for name, value in call.variables.items():
            monkeypatch.setenv(name, value)
        job = call("POST", "/properties/7/jobs").json()
        tried = takewhile(lambda line: "attempt 8" not in line, call.output)
        accepted = (line for line in tried if "delivery" in line and line.endswith(" 200\n"))
        assert len(list(islice(accepted, 3))) == 3

    recorded = sorted((event["type"], event["id"]) for event in unknown_receiver.events)
    assert recorded == [(f"jobs.{event}", job["id"]) for event in ("created", "updated", "updated")]


def test_a_secret_of_ones_own_is_not_printed_and_a_refusal_is_one_line(receiver):
    secret = "whsec_b3duLXNlY3JldC1vZi0yMC1ieXRlcw=="
    arguments = (f"--deliver={receiver.url('other-token')}", f"--signing-secret={secret}")
    with running_fake(*arguments, exports=4) as call:
        job = call("POST", "/properties/7/jobs").json()
        lines = list(islice(call.output, 2))

    assert json.loads(call.variables["AIRFLOW_VAR_FSM_WEBHOOKS"])["endpoints"].keys() == {
        "fsm_default/jobs"
    }
    assert secret not in call.variables.values()
    assert [line.split(maxsplit=1)[1] for line in lines if "delivery" in line] == [
        f"delivery of jobs.created {job['id']}, attempt 1: 404\n"
    ]
