"""Webhooks on a real Airflow: registered once, received, turned into runs; forged ones are not.

That neither signing secret nor path token is in any log, XCom or database file is checked when the
shared Airflow stops.
"""

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from functools import cache

import pytest
import requests

from fsm_provider.testing import FakeFieldService
from tests.seeds import ARE_FEW, number_of_kills
from tests.system.airflow_api import PATIENCE, POLL_SECONDS, wait_until
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import watching
from tests.unit.plugins import signing

ASSET = "fsm://fsm_default/jobs"
JOBS_IN_A_KILL = number_of_kills(30)
KILLS = 1 if ARE_FEW else 2


@pytest.fixture(scope="module")
def webhook(airflow: LocalAirflow, service: FakeFieldService) -> dict:
    """The registration with the receiver's own URL, made by the example DAG, run twice."""
    endpoints = {"fsm_default/jobs": {"signature": "standard-webhooks", "keep_body": True}}
    airflow.set_variable("fsm_webhooks", {"base_url": airflow.base_url, "endpoints": endpoints})
    for _ in range(2):
        run_id = airflow.trigger("webhook_bootstrap")
        assert airflow.wait_for_run("webhook_bootstrap", run_id) == "success"
    (registered,) = airflow.xcom("webhook_bootstrap", run_id, "register")
    (ours,) = (one for one in service.webhooks if one["targetURL"].startswith(airflow.base_url))
    url = ours["targetURL"].rpartition("/")[0]
    assert url == f"{airflow.base_url}/fsm/webhooks/fsm_default/jobs"
    assert registered["targetURL"] == f"{url}/***"
    listed = airflow.api("GET", "/variables", params={"limit": 1000})["variables"]
    (stored,) = (
        one for one in listed if one["key"].startswith("fsm_webhook_secret_fsm_default_jobs_")
    )
    assert (json.loads(stored["value"])["secret"], stored["is_encrypted"]) == ("***", True)
    return ours


def test_a_new_job_starts_a_run_with_its_reference_and_its_form_another(
    airflow: LocalAirflow, service: FakeFieldService, webhook: dict
) -> None:
    with watching(airflow, service, "forms_beside_webhooks"):
        job = service.add_job(7, customerReference="PO-HOOK")

        wait_until_delivered(service, [job["id"]])

        assert events_by_job(airflow)[job["id"]] == 1
        wait_for_references(airflow, {job["id"]}, service)
        wait_until(
            lambda: (
                job["id"]
                in {form["jobID"] for form in given(airflow, "forms_beside_webhooks", "forms")}
            ),
            what="a run got the form of the job",
        )


def test_forged_deliveries_are_not_accepted(
    airflow: LocalAirflow, service: FakeFieldService, webhook: dict
) -> None:
    before, url, body = events_by_job(airflow), webhook["targetURL"], b'{"type": "jobs.created"}'
    signed = signing.standard(webhook["signingSecret"], body)
    forged = [
        (url, body, signing.standard(signing.standard_secret(), body), 401),
        (url, body + b" ", signed, 401),
        (f"{url[:-1]}-", body, signed, 404),
    ]

    for to, content, headers, status in forged:
        response = requests.post(to, content, headers=headers, timeout=60)
        assert (response.status_code, response.json()) == (status, {"accepted": False})
    assert events_by_job(airflow) == before


def test_no_accepted_delivery_is_lost_where_the_api_server_is_killed(
    airflow: LocalAirflow, service: FakeFieldService, webhook: dict
) -> None:
    jobs: set[int] = set()
    first = len(service.deliveries)
    for _ in range(KILLS):
        jobs |= {service.add_job(7)["id"] for _ in range(JOBS_IN_A_KILL)}
        wait_until_some_are_delivered(service, jobs, len(jobs) - JOBS_IN_A_KILL // 2)
        airflow.kill("api-server")
        airflow.restart("api-server")
    wait_until_delivered(service, jobs)

    events = events_by_job(airflow)
    attempts = service.deliveries[first:]
    unanswered = [attempt for attempt in attempts if attempt.status is None]
    assert unanswered
    assert {job_id: events[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)
    waited = wait_for_references(airflow, jobs, service)
    slowest = max(attempt.seconds for attempt in attempts if attempt.status == 200)
    print(
        f"{len(jobs)} jobs, {len(attempts)} attempts, {len(unanswered)} without a response, "
        f"{sum(attempt.status == 503 for attempt in attempts)} asked to retry, "
        f"slowest accepted {slowest:.2f} s, {waited} times the next event was needed"
    )


def events_by_job(airflow: LocalAirflow) -> Counter:
    """Count the asset's events. Airflow's API answers 500 while a run that one of them started is
    queued.
    """
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=30)) as database:
        rows = database.execute(
            "select asset_event.extra from asset_event join asset on asset.id = asset_id where uri = ?",
            [ASSET],
        )
        return Counter(json.loads(extra).get("id") for (extra,) in rows)


def given(airflow: LocalAirflow, dag_id: str, task_id: str) -> list[dict]:
    """What a task gave in all runs that have succeeded."""
    runs = [run["dag_run_id"] for run in airflow.runs(dag_id) if run["state"] == "success"]
    return [one for run_id in runs for one in given_in_run(airflow, dag_id, run_id, task_id)]


@cache
def given_in_run(airflow: LocalAirflow, dag_id: str, run_id: str, task_id: str) -> list[dict]:
    return airflow.xcom(dag_id, run_id, task_id)


def wait_until_some_are_delivered(service: FakeFieldService, jobs: set[int], some: int) -> None:
    def some_are() -> bool:
        return len({one.job_id for one in service.deliveries if one.status == 200} & jobs) >= some

    service.wait_for(some_are, PATIENCE)


def wait_until_delivered(service: FakeFieldService, jobs) -> None:
    """Return once each job was delivered, and its duplicate too."""

    def all_are() -> bool:
        accepted = Counter(one.job_id for one in service.deliveries if one.status == 200)
        return all(accepted[job_id] >= 2 for job_id in jobs)

    service.wait_for(all_are, PATIENCE)


def wait_for_references(airflow: LocalAirflow, jobs: set[int], service: FakeFieldService) -> int:
    """Return once each of these jobs is among the references that exactly one run was started with.

    On SQLite, which has no row locks, the scheduler may delete the queue's row that an event counts
    on: it then waits for the next event. That is made after a while; the result says how often.
    """
    deadline, made, next_job_at = time.monotonic() + PATIENCE, 0, time.monotonic() + 20
    while True:
        runs = airflow.runs("jobs_from_webhooks")
        references = [
            (reference["type"], reference["jobID"])
            for reference in given(airflow, "jobs_from_webhooks", "references")
        ]
        if all(("jobs.created", job_id) in references for job_id in jobs):
            assert {references.count(("jobs.created", job_id)) for job_id in jobs} == {1}
            return made
        assert time.monotonic() < deadline, jobs - {job_id for _, job_id in references}
        if time.monotonic() > next_job_at and all(
            run["state"] in ("success", "failed") for run in runs
        ):
            made, next_job_at = made + 1, time.monotonic() + 20
            service.add_job(7)
        time.sleep(POLL_SECONDS)
