"""Handle every completed form, whichever runs fail, without relying on events.

Each run lists what was updated since the last run that *succeeded*, and skips what that run has
seen, by ``(id, lastUpdatedOnDateTime)``. The watermark and what was seen are in an Airflow Variable
named like the DAG. The last task writes it, once the forms are handled: if a run fails, the next
one gets its forms too. So a form is handled at least once. Handle it by its key, because writing
the Variable may be what failed. To have forms handled again, set the time in it back.

The watermark is the start of a listing, by the worker's clock, never the latest time in its
records: forms arrive while a listing is read. Each listing also goes back by a look-back, because
phones sync late and clocks differ. A form that reaches the service even later is not seen. The DAG
allows one run at a time, so do not backfill it. It starts paused: until a run has succeeded, each
begins one look-back before itself.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Param, Variable, dag, task

from fsm_provider.operators.forms import FsmListFormsOperator

VARIABLE = "forms_since_watermark"


def read_state() -> dict:
    """Return what the last run that succeeded has seen: ``listed_at`` and ``seen``."""
    # The parameter of the default has another name before Airflow 3.
    return json.loads(Variable.get(VARIABLE, "{}"))


def times_for(state: dict, now: datetime, look_back: timedelta) -> dict[str, str]:
    """Return when a run lists, and since when: the last listing, less the look-back."""
    last = datetime.fromisoformat(state["listed_at"]) if state else now
    return {"now": now.isoformat(), "since": (last - look_back).isoformat()}


def key_for(form: dict) -> str:
    return f"{form['id']} {form['lastUpdatedOnDateTime']}"


def unseen(listed: list[dict], seen: list[str]) -> list[dict]:
    """Return the new versions of forms, each once; a form may be on two pages of a listing."""
    versions, known = {key_for(form): form for form in listed}, set(seen)
    return [form for key, form in versions.items() if key not in known]


def next_state(state: dict, listed_at: str, listed: list[dict]) -> dict:
    """Return the state to save after a run: all of its listing, and nothing older, as the next
    begins later.

    A run that is cleared takes nothing back that a later one has noted.
    """
    later = state and datetime.fromisoformat(state["listed_at"]) > datetime.fromisoformat(listed_at)
    return (
        state
        if later
        else {"listed_at": listed_at, "seen": sorted({key_for(form) for form in listed})}
    )


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "look_back_hours": Param(
            168, type="integer", minimum=1, title="Hours that a phone may sync late"
        )
    },
)
def forms_since_watermark():
    @task(multiple_outputs=True)
    def begin(params):
        """Take the time before anything is listed."""
        return times_for(
            read_state(), datetime.now(UTC), timedelta(hours=params["look_back_hours"])
        )

    @task
    def choose_unseen(listed):
        return unseen(listed, read_state().get("seen", []))

    @task
    def handle_forms(forms):
        """Stands for the work; put your tasks here, mapped ones too."""
        for form in forms:
            print(
                f"{form['formName']} {form['id']} of property {form['propertyID']}, job {form['jobID']}"
            )
        return [form["id"] for form in forms]

    # The work may be skipped if there is nothing to do.
    @task(trigger_rule="none_failed")
    def commit(listed_at, listed):
        """Save what is done, now that it is."""
        Variable.set(VARIABLE, json.dumps(next_state(read_state(), listed_at, listed)))

    # [START howto_operator_list_forms]
    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    handle_forms(choose_unseen(list_forms.output)) >> commit(begun["now"], list_forms.output)
    # [END howto_operator_list_forms]


forms_since_watermark()
