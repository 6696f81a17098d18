"""What a runner records while a write waits for its turn, is refused, or cannot be stored."""

import json
import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.state.schema import LEDGER
from fsm_provider.testing import faults
from fsm_provider.writes import runner
from fsm_provider.writes.runner import LOOK_INTERVAL
from tests.unit.operators.jobs import attempt_of, create, request, statuses
from tests.unit.state_store import IN_AIRFLOW, context_for

IN_DATABASE = pytest.mark.parametrize("store", ["in a database"], indirect=True)
DAY = 86_400_000


pytestmark = pytest.mark.usefixtures("short_delays")


@pytest.fixture
def service(service_with_keys):
    return service_with_keys


def attempt(store, jobs, **options):
    return attempt_of(store, create(jobs, **{"max_concurrency": 1, **options}))


@IN_DATABASE
def test_a_key_that_the_service_forgets_while_others_are_sent_is_not_sent_again(
    service, connect, store
):
    connect(service, max_retries=0)
    jobs = [request(number, key=f"PM-{number}") for number in (1, 2)]
    service.fail("POST", "/properties/2/jobs", faults.Reset(after_handling=True))
    attempt(store, jobs[1:])

    def let_a_day_pass():
        with store.engine.begin() as connection:
            earlier = LEDGER.c.key_first_sent_at - DAY
            connection.execute(LEDGER.update().values(key_first_sent_at=earlier))

    service.fail("POST", "/properties/1/jobs", faults.Before(let_a_day_pass, faults.Status(201)))
    outcomes, _ = attempt(store, jobs)

    assert outcomes[1]["outcome"] == "uncertain"
    assert len(service.requests_to("POST", "/properties/2/jobs")) == 1


def test_half_as_many_again_are_claimed_as_are_sent_at_once_and_no_more(service, connect, store):
    """Those are uncertain if the task is killed."""
    connect(service)
    claimed = []

    def count_claims():
        time.sleep(2 * LOOK_INTERVAL + 0.2)
        claimed.append([row["state"] for row in store.rows.values()].count("sending"))

    for number in (1, 2):
        service.fail("POST", f"/properties/{number}/jobs", faults.Before(count_claims))
    outcomes, _ = attempt(store, [request(number) for number in range(1, 9)], max_concurrency=2)

    assert statuses(outcomes) == ["created"] * 8
    assert claimed[0] == 3


def test_what_the_service_refuses_in_between_is_no_lost_response(service, connect, store):
    connect(service, max_retries=6)
    jobs = [request(number, key=f"PM-{number}") for number in range(1, 7)]
    for number in range(1, 7):
        path = f"/properties/{number}/jobs"
        service.fail("POST", path, faults.Reset(after_handling=True))
        at_once = {"Retry-After": "0"}
        service.fail("POST", path, faults.Status(429, headers=at_once), calls=(2, 3, 4, 5))

    outcomes, error = attempt(store, jobs)

    assert error is None, error
    assert statuses(outcomes) == ["created"] * 6
    assert len(service.jobs) == 6


def test_a_response_that_comes_at_last_is_no_lost_one(service, connect, store, monkeypatch):
    monkeypatch.setattr(runner, "MAX_LOST_IN_A_ROW", 4)
    connect(service)
    jobs = [request(number, key=f"PM-{number}") for number in range(3)]
    for number in range(3):
        path = f"/properties/{number}/jobs"
        service.fail("POST", path, faults.Reset(after_handling=True))

    outcomes, _ = attempt(store, jobs, max_concurrency=1)

    assert statuses(outcomes) == ["created"] * 3


def test_what_this_attempt_has_sent_in_vain_names_no_other_task(service, connect, store):
    connect(service)
    service.fail("POST", "/properties/1/jobs", faults.Status(400))

    outcomes, _ = attempt(store, [request(1, key="PM-1")])

    assert statuses(outcomes) == ["rejected"]
    assert outcomes[0]["by"] is None


@IN_AIRFLOW
def test_what_could_not_be_stored_at_once_is_stored_before_the_task_fails(
    service, connect, store, caplog
):
    connect(service)
    store.refuse_once(lambda _: bool(service.jobs))
    jobs = [request(number, key=f"PM-{number}") for number in (1, 2)]
    with pytest.raises(RuntimeError, match="no API server"):
        create(jobs, max_concurrency=1).execute(context_for(store))
    assert "cannot be recorded" not in caplog.text

    outcomes, _ = attempt(store, jobs)

    assert statuses(outcomes) == ["existing", "created"]
    assert len(service.jobs) == 2


@IN_AIRFLOW
def test_a_claim_that_could_not_be_stored_is_not_uncertain(service, connect, store):
    connect(service)

    def claims_the_second(page):
        return len(service.jobs) == 1 and '"sending"' in json.dumps(page)

    store.refuse_once(claims_the_second)
    jobs = [request(number, key=f"PM-{number}") for number in (1, 2)]
    with pytest.raises(RuntimeError, match="no API server"):
        create(jobs, max_concurrency=1).execute(context_for(store))

    outcomes, _ = attempt(store, jobs)

    assert statuses(outcomes) == ["existing", "created"]


def test_a_job_that_is_repeated_by_its_key_counts_for_max_jobs(service, connect, store):
    connect(service, max_retries=0)
    jobs = [request(number, key=f"PM-{number}") for number in (1, 2)]
    service.fail("POST", "/properties/*/jobs", faults.Reset(), every=True)
    attempt(store, jobs)
    service.clear_faults()

    with pytest.raises(AirflowFailException, match="max_jobs: 2 jobs are to be created"):
        create(jobs, max_jobs=1).execute(context_for(store))


@IN_DATABASE
def test_an_id_that_is_a_text_is_no_part_of_a_command(service, connect, store, caplog):
    connect(service)
    body = {"id": "1; rm -r x"}

    def refuse_updates():
        store.refuse("UPDATE")

    answer = faults.Before(refuse_updates, faults.Status(201, body=json.dumps(body)))
    path = "/settings/webhooks"
    service.fail("POST", path, answer)
    operator = FsmRequestOperator(task_id="task", method="POST", path=path, json={}, key="n")
    with pytest.raises(Exception, match="refused by the test"):
        operator.execute(context_for(store))

    [line] = [line for line in caplog.text.splitlines() if "cannot be recorded" in line]
    assert "--done n" in line.partition("fsm_provider ledger")[2]
    assert "rm -r" not in line.partition("fsm_provider ledger")[2]
