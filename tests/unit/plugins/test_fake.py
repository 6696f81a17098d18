"""The fake on the command line delivers to the receiver, which is configured as the fake prints."""

import json
from itertools import islice

from tests.unit.testing.fake_command import running_fake


def await_accepted_deliveries(output, count):
    """Read the output of the fake until so many deliveries are accepted."""
    accepted = 0
    while accepted < count:
        line = output.readline()
        assert line, "the fake has ended"
        assert "attempt 8" not in line, "the fake gives up"
        if "delivery" in line and line.endswith(" 200\n"):
            accepted += 1


def test_deliveries_are_recorded_with_what_the_fake_prints(unknown_receiver, asset, monkeypatch):
    asset()
    target = f"--deliver={unknown_receiver.url()}"
    with running_fake("--form-after=0", target, exports=4) as call:
        for name, value in call.variables.items():
            monkeypatch.setenv(name, value)

        job = call("POST", "/properties/7/jobs").json()
        await_accepted_deliveries(call.output, 3)

    recorded = [(event["type"], event["id"]) for event in unknown_receiver.events]
    assert sorted(recorded) == [
        ("jobs.created", job["id"]),
        ("jobs.updated", job["id"]),
        ("jobs.updated", job["id"]),
    ]


def test_a_secret_of_ones_own_is_not_printed_and_a_refusal_is_one_line(receiver):
    secret = "whsec_b3duLXNlY3JldC1vZi0yMC1ieXRlcw=="
    target = f"--deliver={receiver.url('other-token')}"
    with running_fake(target, f"--signing-secret={secret}", exports=4) as call:
        job = call("POST", "/properties/7/jobs").json()
        lines = list(islice(call.output, 2))

    settings = json.loads(call.variables["AIRFLOW_VAR_FSM_WEBHOOKS"])
    assert settings["endpoints"].keys() == {"fsm_default/jobs"}
    assert secret not in call.variables.values()
    [delivery] = [line for line in lines if "delivery" in line]
    message = delivery.split(maxsplit=1)[1]
    assert message == f"delivery of jobs.created {job['id']}, attempt 1: 404\n"
