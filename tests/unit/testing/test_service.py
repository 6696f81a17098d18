from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta

import pytest

from fsm_provider.testing import Deliveries, Engineer, FakeFieldService
from fsm_provider.testing.__main__ import SIGNING_SECRET


def created_at(record):
    return datetime.fromisoformat(record["createdOnDateTime"])


def test_stop_ends_every_thread():
    before = set(threading.enumerate())
    with FakeFieldService(engineer=Engineer(after=60)) as service:
        service.add_job(1)
        assert set(threading.enumerate()) - before

    assert set(threading.enumerate()) <= before


def test_it_comes_back_on_the_same_port_with_its_records(call):
    call.create_job(1)
    url = call.service.base_url

    call.service.stop()
    call.service.start()

    assert call.service.base_url == url
    assert call.create_job(1).status_code == 201
    assert len(call.service.jobs) == 2


def test_the_url_is_not_known_before_the_start_unless_the_port_is_given():
    with pytest.raises(RuntimeError, match="start"):
        FakeFieldService().add_form()

    service = FakeFieldService(port=8400, base_path="/api")

    assert service.base_url == "http://127.0.0.1:8400/api"


@pytest.mark.parametrize(
    "parameters",
    [
        {"page_size": 0},
        {"dialect": "xml"},
        {"event_types_style": "first"},
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(parameters):
    [name] = parameters

    with pytest.raises(ValueError, match=name):
        FakeFieldService(**parameters)


def test_the_engineer_completes_each_form_and_then_the_job_after_a_while(serve, caplog):
    caplog.set_level(logging.INFO, "fsm_provider.testing")
    call = serve(engineer=Engineer(after=0.2, form_names=("A", "B"), every=0.2))
    job = call.create_job(7).json()

    call.service.wait_for(lambda: call.service.jobs[0]["status"] == "Completed", timeout=10)

    begun, form_a, form_b, completed = [
        record for record in caplog.records if record.msg.startswith(("job", "form"))
    ]
    assert begun.getMessage().split(":")[1] == " In Progress"
    assert form_a.getMessage().split(":")[1] == " A"
    assert form_b.getMessage().split(":")[1] == " B"
    assert completed.getMessage().split(":")[1] == " Completed"

    job_created = created_at(job)
    assert begun.created - job_created.timestamp() >= 0.09
    first, second = call.service.forms
    assert created_at(first) - job_created >= timedelta(seconds=0.19)
    assert created_at(second) - job_created >= timedelta(seconds=0.39)
    assert first["jobDetails"]["jobID"] == job["id"]
    assert second["jobDetails"]["jobID"] == job["id"]

    [completed_job] = call.service.jobs
    assert completed_job["completed"]["completedOnDateTime"] >= second["createdOnDateTime"]
    assert job["status"] == "Open"
    assert job["completed"]["completedOnDateTime"] is None


def test_stop_cancels_forms_and_deliveries_that_are_not_due_yet(serve):
    delayed = Deliveries(reorder=1, seed=2)  # some 0.96 s
    call = serve(engineer=Engineer(after=1), deliveries=delayed)
    call.service.add_webhook("http://127.0.0.1:9/", SIGNING_SECRET)
    call.create_job(7)

    call.service.stop()
    call.service.start()
    time.sleep(1.2)

    assert call.service.forms == []
    assert call.service.deliveries == []


def test_waiting_in_vain_is_an_error(call):
    with pytest.raises(TimeoutError):
        call.service.wait_for(lambda: call.service.forms, timeout=0.05)
