"""What other versions of the package have stored in the task state store is read, or refused."""

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.writes.task_ledger import PAGE, PAGE_FORMAT
from tests.unit.state_store import IN_AIRFLOW, context_for
from tests.unit.writes.operators import lose, write_job

FIRST_PAGE = f"{PAGE}0"


@pytest.fixture
def sent(service, connect, store):
    """Send a job; return what is stored of it, which a test changes."""
    connect(service)
    write_job().execute(context_for(store))
    return store.get(FIRST_PAGE)


def send_again(store):
    return write_job().execute(context_for(store, cleared=1))


@IN_AIRFLOW
def test_a_page_has_a_version(store, sent):
    assert sent["version"] == PAGE_FORMAT
    assert [entry["key"] for entry in sent["entries"].values()] == ["task"]


@IN_AIRFLOW
@pytest.mark.parametrize("where", ["page", "entry"])
def test_a_field_of_another_version_is_ignored(service, store, sent, where):
    if where == "page":
        sent["region"] = "north"
    for entry in sent["entries"].values():
        entry["region"] = "north"
    store.set(FIRST_PAGE, sent)

    assert send_again(store)["id"] == service.jobs[0]["id"]
    assert len(service.requests) == 1


@IN_AIRFLOW
@pytest.mark.parametrize(
    "name", ["note", "sent_at", "reference", "property_id", "kind", "what", "service"]
)
def test_a_field_that_another_version_has_not_stored_has_its_default(service, store, sent, name):
    for entry in sent["entries"].values():
        entry.pop(name, None)
    store.set(FIRST_PAGE, sent)

    assert send_again(store)["id"] == service.jobs[0]["id"]
    assert len(service.requests) == 1


@IN_AIRFLOW
def test_without_the_digest_that_verifies_it_a_write_is_not_taken_for_ours(service, store, sent):
    for entry in sent["entries"].values():
        entry.pop("digest")
    store.set(FIRST_PAGE, sent)

    with pytest.raises(AirflowFailException, match="key 'task' is that of POST"):
        send_again(store)
    assert len(service.requests) == 1


@IN_AIRFLOW
def test_an_entry_that_was_being_sent_by_another_version_is_uncertain(service, connect, store):
    connect(service)
    lose(service)
    with pytest.raises(AirflowFailException):
        write_job().execute(context_for(store))
    page = store.get(FIRST_PAGE)
    for entry in page["entries"].values():
        entry["state"] = "sending"
        entry["region"] = "north"
    store.set(FIRST_PAGE, page)

    with pytest.raises(AirflowFailException, match="no response was recorded"):
        send_again(store)
    assert len(service.requests) == 1


@IN_AIRFLOW
def test_a_page_of_a_newer_version_is_refused_in_a_sentence_that_says_what_to_do(
    service, store, sent
):
    sent["version"] = PAGE_FORMAT + 1
    store.set(FIRST_PAGE, sent)
    before = json.dumps(store.kept)

    with pytest.raises(AirflowFailException) as refused:
        send_again(store)

    assert str(refused.value) == (
        "task_state_store: the ledger of task task of run run of DAG dag was written by a newer "
        "version of airflow-provider-fsm (format 2): install that version again, and clear the task"
    )
    assert json.dumps(store.kept) == before
    assert len(service.requests) == 1


@IN_AIRFLOW
def test_without_its_state_nobody_knows_what_became_of_it(service, store, sent):
    for entry in sent["entries"].values():
        entry.pop("state")
    store.set(FIRST_PAGE, sent)

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        send_again(store)
    assert len(service.requests) == 1


@IN_AIRFLOW
@pytest.mark.parametrize(
    "damaged",
    [
        {"version": 1},
        {"version": 1, "entries": None},
        {"version": "1", "entries": {}},
        {"version": 1, "entries": {"x": "y"}},
        ["entries"],
        "entries",
        7,
    ],
    ids=str,
)
def test_what_is_no_page_is_refused_and_nothing_is_sent(service, store, sent, damaged):
    store.set(FIRST_PAGE, damaged)

    with pytest.raises(AirflowFailException, match="cannot be read, and nothing was sent"):
        send_again(store)
    assert len(service.requests) == 1
