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
    """Return what the last run that succeeded has saved: ``listed_at`` and ``seen``.

    It is empty before the first run has succeeded.
    """
    # The parameter of the default has another name before Airflow 3.
    text = Variable.get(VARIABLE, "{}")
    return json.loads(text)


def times_for(state: dict, now: datetime, look_back: timedelta) -> dict[str, str]:
    """Return when a run lists, and since when: the last listing, less the look-back."""
    last_listing = now
    if state:
        last_listing = datetime.fromisoformat(state["listed_at"])
    since = last_listing - look_back
    return {"now": now.isoformat(), "since": since.isoformat()}


def key_for(form: dict) -> str:
    """Return the key of this version of a form: a form that changes has a new one."""
    return f"{form['id']} {form['lastUpdatedOnDateTime']}"


def unseen(listed: list[dict], seen: list[str]) -> list[dict]:
    """Return the versions of forms that are new."""
    known = set(seen)
    new = {}
    for form in listed:
        key = key_for(form)
        if key not in known:
            # By its key, since a form may be on two pages of a listing.
            new[key] = form
    return list(new.values())


def next_state(state: dict, listed_at: str, listed: list[dict]) -> dict:
    """Return the state to save after a run: all of its listing.

    Nothing older is needed, as the next listing begins later.
    """
    if state:
        saved_at = datetime.fromisoformat(state["listed_at"])
        if saved_at > datetime.fromisoformat(listed_at):
            # A later run has saved more: this one was cleared, and runs again.
            return state
    keys = {key_for(form) for form in listed}
    return {"listed_at": listed_at, "seen": sorted(keys)}


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
        ),
    },
)
def forms_since_watermark():
    @task(multiple_outputs=True)
    def begin(params):
        """Take the time before anything is listed; return it, and the time to list from."""
        now = datetime.now(UTC)
        look_back = timedelta(hours=params["look_back_hours"])
        return times_for(read_state(), now, look_back)

    @task
    def choose_unseen(listed):
        """Return the forms that the last run has not seen."""
        seen = read_state().get("seen", [])
        return unseen(listed, seen)

    @task
    def handle_forms(forms):
        """Stands for the work; put your tasks here, mapped ones too."""
        for form in forms:
            name = f"{form['formName']} {form['id']}"
            print(f"{name} of property {form['propertyID']}, job {form['jobID']}")
        return [form["id"] for form in forms]

    # The work may be skipped if there is nothing to do.
    @task(trigger_rule="none_failed")
    def commit(listed_at, listed):
        """Save what is done, now that it is."""
        state = next_state(read_state(), listed_at, listed)
        Variable.set(VARIABLE, json.dumps(state))

    # [START howto_operator_list_forms]
    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    new_forms = choose_unseen(list_forms.output)
    handle_forms(new_forms) >> commit(begun["now"], list_forms.output)
    # [END howto_operator_list_forms]


forms_since_watermark()
