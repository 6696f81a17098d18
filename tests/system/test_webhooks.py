"""Webhooks on a real Airflow: registered once, received, turned into runs; forged ones are not.

That neither signing secret nor path token is in any log, XCom or database file is checked when the
shared Airflow stops.
"""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from functools import cache
from typing import Any

import pytest
import requests

from fsm_provider.testing import FakeFieldService
from tests.seeds import ARE_FEW, number_of_kills
from tests.system.airflow_api import FINISHED, PATIENCE, POLL_SECONDS, wait_until
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import watching
from tests.unit.plugins import signing

ASSET = "fsm://fsm_default/jobs"
EVENTS = """
    select asset_event.extra
    from asset_event join asset on asset.id = asset_id
    where uri = ?
"""
JOBS_IN_A_KILL = number_of_kills(30)
KILLS = 1 if ARE_FEW else 2


@pytest.fixture(scope="module")
def webhook(airflow: LocalAirflow, service: FakeFieldService) -> dict:
    """The registration with the receiver's own URL, made by the example DAG, run twice."""
    endpoint = {"signature": "standard-webhooks", "keep_body": True}
    configuration = {
        "base_url": airflow.base_url,
        "endpoints": {"fsm_default/jobs": endpoint},
    }
    airflow.set_variable("fsm_webhooks", configuration)

    for _ in range(2):
        run_id = airflow.trigger("webhook_bootstrap")
        assert airflow.wait_for_run("webhook_bootstrap", run_id) == "success"

    (registered,) = airflow.xcom("webhook_bootstrap", run_id, "register")
    ours = only_with_prefix(service.webhooks, "targetURL", airflow.base_url)
    url, _, _ = ours["targetURL"].rpartition("/")
    assert url == f"{airflow.base_url}/fsm/webhooks/fsm_default/jobs"
    assert registered["targetURL"] == f"{url}/***"
    variables = airflow.api("GET", "/variables", params={"limit": 1000})["variables"]
    stored = only_with_prefix(variables, "key", "fsm_webhook_secret_fsm_default_jobs_")
    assert json.loads(stored["value"])["secret"] == "***"
    assert stored["is_encrypted"] is True
    return ours


def only_with_prefix(records: list[dict[str, Any]], name: str, prefix: str) -> dict[str, Any]:
    """Give the only record of which a field begins with this."""
    (record,) = [record for record in records if record[name].startswith(prefix)]
    return record


def test_a_new_job_starts_a_run_with_its_reference_and_its_form_another(
    airflow: LocalAirflow, service: FakeFieldService, webhook: dict
) -> None:
    with watching(airflow, service, "gas_safety_forms"):
        job = service.add_job(7, customerReference="PO-HOOK")

        wait_until_delivered(service, [job["id"]])

        assert events_by_job(airflow)[job["id"]] == 1
        wait_for_references(airflow, {job["id"]}, service)

        def has_form() -> bool:
            forms = results_of_task(airflow, "gas_safety_forms", "parse_forms")
            return job["id"] in {form["jobID"] for form in forms}

        wait_until(has_form, "a run got the form of the job")


def test_forged_deliveries_are_not_accepted(
    airflow: LocalAirflow, service: FakeFieldService, webhook: dict
) -> None:
    before = events_by_job(airflow)
    url = webhook["targetURL"]
    other_url = f"{url[:-1]}-"
    body = b'{"type": "jobs.created"}'
    signed = signing.standard(webhook["signingSecret"], body)
    signed_by_others = signing.standard(signing.standard_secret(), body)
    forged = [
        (url, body, signed_by_others, 401),
        (url, body + b" ", signed, 401),
        (other_url, body, signed, 404),
    ]

    for target, content, headers, status in forged:
        response = requests.post(target, content, headers=headers, timeout=60)
        assert response.status_code == status
        assert response.json() == {"accepted": False}
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
    statuses = Counter(attempt.status for attempt in attempts)
    assert statuses[None] > 0
    assert {job_id: events[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)
    waited = wait_for_references(airflow, jobs, service)
    slowest = max(attempt.seconds for attempt in attempts if attempt.status == 200)
    print(
        f"{len(jobs)} jobs, {len(attempts)} attempts, {statuses[None]} without a response, "
        f"{statuses[503]} asked to retry, slowest accepted {slowest:.2f} s, "
        f"{waited} times the next event was needed"
    )


def events_by_job(airflow: LocalAirflow) -> Counter:
    """Count the asset's events.

    In its database: Airflow's API answers 500 while a run that one of them started is queued.
    """
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=30)) as database:
        rows = database.execute(EVENTS, [ASSET])
        events = [json.loads(extra) for (extra,) in rows]
    return Counter(event.get("id") for event in events)


def results_of_task(airflow: LocalAirflow, dag_id: str, task_id: str) -> list[dict]:
    """What a task returned in all runs that have succeeded, one list after the other."""
    results: list[dict] = []
    for run_id in airflow.succeeded_runs(dag_id):
        results += result_in_run(airflow, dag_id, run_id, task_id)
    return results


@cache
def result_in_run(airflow: LocalAirflow, dag_id: str, run_id: str, task_id: str) -> list[dict]:
    return airflow.xcom(dag_id, run_id, task_id)


def times_accepted(service: FakeFieldService) -> Counter[int]:
    """Count the deliveries of each job that were accepted."""
    times: Counter[int] = Counter()
    for delivery in service.deliveries:
        if delivery.status == 200:
            times[delivery.job_id] += 1
    return times


def wait_until_some_are_delivered(service: FakeFieldService, jobs: set[int], wanted: int) -> None:
    def are_enough() -> bool:
        delivered = jobs & times_accepted(service).keys()
        return len(delivered) >= wanted

    service.wait_for(are_enough, PATIENCE)


def wait_until_delivered(service: FakeFieldService, jobs: Collection[int]) -> None:
    """Return once each job was delivered, and its duplicate too."""

    def are_all_delivered() -> bool:
        accepted = times_accepted(service)
        return all(accepted[job_id] >= 2 for job_id in jobs)

    service.wait_for(are_all_delivered, PATIENCE)


def wait_for_references(airflow: LocalAirflow, jobs: set[int], service: FakeFieldService) -> int:
    """Return once each of these jobs is among the references that exactly one run was started with.

    On SQLite, which has no row locks, the scheduler may delete the queue's row that an event counts
    on: it then waits for the next event. That is made after a while; the result says how often.
    """
    deadline = time.monotonic() + PATIENCE
    next_job_at = time.monotonic() + 20
    jobs_made = 0
    while True:
        run_states = {run["state"] for run in airflow.runs("jobs_from_webhooks")}
        references = results_of_task(airflow, "jobs_from_webhooks", "references")
        times = Counter((reference["type"], reference["jobID"]) for reference in references)
        times_created = {job_id: times["jobs.created", job_id] for job_id in jobs}
        if all(times_created.values()):
            assert set(times_created.values()) == {1}
            return jobs_made
        assert time.monotonic() < deadline, jobs - {job_id for _, job_id in times}
        are_runs_over = run_states <= FINISHED
        if are_runs_over and time.monotonic() > next_job_at:
            jobs_made += 1
            next_job_at = time.monotonic() + 20
            service.add_job(7)
        time.sleep(POLL_SECONDS)
