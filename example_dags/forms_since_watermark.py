"""Every completed form is handled, whichever runs fail; nothing rests on events.

Each run lists what was updated since the last run that *succeeded*, and leaves out what that one had seen, by
``(id, lastUpdatedOnDateTime)``. What it knows is in an Airflow Variable named like the DAG, and is written by
the last task, once the forms are handled: where a run fails, the next has its forms too. A form is thus
handled at least once; handle it by its key, since the note that it was handled may be what failed.

A listing counts from its own start, by the worker's clock, never from the latest time in its records: while
it is read, forms go on arriving behind it. Each goes back by a look-back more, since phones sync late and
clocks differ: a form that reaches the service later than that is not seen. One run at a time, so do not
backfill it. Starts paused: its first run begins a look-back before itself.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Param, Variable, dag, task

from fsm_provider.operators.forms import FsmListFormsOperator

VARIABLE = "forms_since_watermark"


def read_state() -> dict:
    """Give what the last run that succeeded has noted: ``listed_at`` and ``seen``."""
    # The name of the default is another one before Airflow 3.
    return json.loads(Variable.get(VARIABLE, "{}"))


def key_of(form: dict) -> str:
    return f"{form['id']} {form['lastUpdatedOnDateTime']}"


def unseen(listed: list[dict], seen: list[str]) -> list[dict]:
    """Give the versions of forms that are new, each once; a form may be on two pages of a listing."""
    versions, known = {key_of(form): form for form in listed}, set(seen)
    return [form for key, form in versions.items() if key not in known]


def next_state(state: dict, listed_at: str, listed: list[dict]) -> dict:
    """Give what to note after a run: all of its listing, and nothing older, as the next begins later.

    A run that is cleared takes nothing back that a later one has noted.
    """
    later = state and datetime.fromisoformat(state["listed_at"]) > datetime.fromisoformat(listed_at)
    return state if later else {"listed_at": listed_at, "seen": sorted({key_of(form) for form in listed})}


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "look_back_hours": Param(168, type="integer", minimum=1, title="Hours that a phone may sync late")
    },
)
def forms_since_watermark():
    @task(multiple_outputs=True)
    def begin(params):
        """Note the time before anything is listed; the very first is kept, should its run fail."""
        now = datetime.now(UTC).isoformat()
        state = read_state() or {"listed_at": now, "seen": []}
        Variable.set(VARIABLE, json.dumps(state))
        since = datetime.fromisoformat(state["listed_at"]) - timedelta(hours=params["look_back_hours"])
        return {"now": now, "since": since.isoformat()}

    @task
    def choose_unseen(listed):
        return unseen(listed, read_state().get("seen", []))

    @task
    def handle_forms(forms):
        """Stands for the work; put your tasks here, mapped ones too."""
        for form in forms:
            print(f"{form['formName']} {form['id']} of property {form['propertyID']}, job {form['jobID']}")
        return [form["id"] for form in forms]

    # Where the work has nothing to do it may be skipped.
    @task(trigger_rule="none_failed")
    def commit(listed_at, listed):
        """Note what is done, now that it is."""
        Variable.set(VARIABLE, json.dumps(next_state(read_state(), listed_at, listed)))

    # [START howto_operator_list_forms]
    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    handle_forms(choose_unseen(list_forms.output)) >> commit(begun["now"], list_forms.output)
    # [END howto_operator_list_forms]


forms_since_watermark()
