"""Deferred sensors on one stream of polls, beside a watcher: a refusal, a dead triggerer.

No form may be lost. ``FSM_KILLS_SEED`` repeats the random kill of a failed test.
"""

import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from tests.seeds import SEED
from tests.system.airflow_api import PATIENCE
from tests.system.form_events import (
    WAITS_ID,
    Waits,
    add,
    times_emitted,
    until_emitted,
)
from tests.system.local_airflow import LocalAirflow

WAITS = 24
SHORT_WAITS = 8
"""The number of them whose forms exist as soon as they defer."""
OF_PROPERTY = "forms_of_a_property"
DAG_OF_A_PROPERTY = f"""\
from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events

SINCE = "{datetime.now(UTC).isoformat()}"
FORMS = {{"fsm_conn_id": "fsm_watched", "property_id": 77, "poll_interval": 1, "start_from": SINCE}}


@dag(schedule=completed_forms("{OF_PROPERTY}", **FORMS))
def {OF_PROPERTY}():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


{OF_PROPERTY}()
"""


class AccountRefused:
    """Refuses to list the forms of the whole account."""

    async def play(self, exchange: Exchange) -> None:
        if {"jobID", "propertyID"} & exchange.request.query_params.keys():
            await exchange.respond(await exchange.handle())
        else:
            await faults.Status(403).play(exchange)


def times_asked(service: FakeFieldService, start: int, one: tuple[str, str]) -> int:
    return sum(one in request.query for request in service.requests[start:])


def test_where_the_account_wide_listing_is_refused_jobs_and_properties_are_served(
    airflow: LocalAirflow, watched: FakeFieldService, dags_folder: Path
) -> None:
    watched.fail("GET", "/forms", AccountRefused(), every=True)
    (dags_folder / f"{OF_PROPERTY}.py").write_text(DAG_OF_A_PROPERTY)
    start = len(watched.requests)
    waits = Waits.start(airflow, watched, SHORT_WAITS)
    waits.until_deferred()
    asked = [("jobID", str(waits.first_job + number)) for number in range(SHORT_WAITS)]
    for one in [*asked, ("propertyID", "77")]:
        watched.wait_for(lambda one=one: times_asked(watched, start, one) >= 4, PATIENCE)

    forms = waits.complete(range(SHORT_WAITS))
    form = watched.add_form(property_id=77)["id"]

    waits.until_found(forms)
    until_emitted(airflow, [form], OF_PROPERTY)
    airflow.pause(OF_PROPERTY, True)


def test_one_of_two_triggerers_is_killed_and_nothing_is_lost(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    chance = random.Random(SEED)
    airflow.start_another("triggerer", "triggerer-2")
    waits = Waits.start(airflow, watched, WAITS)
    waits.until_deferred()
    numbers = chance.sample(range(WAITS), WAITS)
    half, delay = chance.randint(0, WAITS), chance.uniform(0.0, 5.0)

    forms, before = waits.complete(numbers[:half]), add(watched, 3)
    time.sleep(delay)
    airflow.kill("triggerer")
    airflow.processes["triggerer"] = airflow.processes.pop("triggerer-2")
    forms, after = forms | waits.complete(numbers[half:]), add(watched, 3)

    until_emitted(airflow, [*before, *after])
    waits.until_found(forms)
    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"
    times = times_emitted(airflow, [*before, *after])
    print(
        f"seed {SEED}: one of two triggerers killed {delay:.1f} s after {half} of {WAITS} forms: "
        f"emitted {Counter(times.values())}"
    )
    assert max(times[form] for form in before) <= 2
    assert {times[form] for form in after} == {1}
