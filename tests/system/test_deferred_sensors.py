"""Deferred sensors on one stream of polls, beside a watcher, lose no form if a triggerer dies.

``FSM_KILLS_SEED`` repeats the random kill of a test that has failed.
"""

import random
import time
from collections import Counter

from fsm_provider.testing import FakeFieldService
from tests.seeds import SEED
from tests.system.form_events import WAITS_ID, Waits, add_forms, times_emitted, until_emitted
from tests.system.local_airflow import LocalAirflow

WAITS = 24


def test_one_of_two_triggerers_is_killed_and_nothing_is_lost(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    chance = random.Random(SEED)
    airflow.start_another("triggerer", "triggerer-2")
    waits = Waits.start(airflow, watched, WAITS)
    waits.until_deferred()
    numbers = chance.sample(range(WAITS), WAITS)
    half = chance.randint(0, WAITS)
    delay = chance.uniform(0.0, 5.0)

    forms = waits.complete(numbers[:half])
    before = add_forms(watched, 3)
    time.sleep(delay)
    airflow.kill("triggerer")
    airflow.processes["triggerer"] = airflow.processes.pop("triggerer-2")
    forms |= waits.complete(numbers[half:])
    after = add_forms(watched, 3)

    until_emitted(airflow, [*before, *after])
    waits.until_found(forms)
    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"
    times = times_emitted(airflow, [*before, *after])
    frequencies = Counter(times.values())
    print(
        f"seed {SEED}: one of two triggerers killed {delay:.1f} s after {half} of {WAITS} forms: "
        f"emitted {frequencies}"
    )
    assert max(times[form] for form in before) <= 2
    assert {times[form] for form in after} == {1}
