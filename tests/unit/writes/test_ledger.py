"""A write is sent once, whatever happens to the task that sends it."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from threading import Event

import pytest

from fsm_provider.api import (
    FsmBadRequestError,
    FsmConflictError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmRateLimitedError,
    FsmRegistrationMismatchError,
    FsmUncertainWriteError,
)
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.state.task_store import PAGE_ENTRIES
from fsm_provider.writes.ledger import LONG_WAIT, NothingSentError
from fsm_provider.writes.ledgers import open_ledger
from fsm_provider.writes.write import Write
from tests.capabilities import STATE_STORE
from tests.unit.state_store import IN_AIRFLOW, MemoryStateStore, context_for


def write(content="a", key=None):
    return Write("POST", "/properties/7/jobs", {"notes": content}, {"propertyID": 7}, key)


@pytest.fixture(autouse=True)
def connected(service, connect, store):
    connect(service)


def ledger_in(store, *, cleared=0, map_index=-1, max_flight=0.0, **options):
    ledger = open_ledger(context_for(store, cleared=cleared, map_index=map_index), FsmHook(), **options)
    ledger.max_flight = max_flight
    return ledger


class Killed(BaseException):
    """A kill: nobody catches it."""


class Sender:
    """Stands for the service and counts what reaches it."""

    def __init__(self, *errors):
        self.sent = 0
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            error = self.errors.pop(0)
            self.sent += not isinstance(error, NothingSentError)
            raise error
        self.sent += 1
        return {"id": self.sent}


def attempt(store, send, *writes, cleared=0, map_index=-1, **options):
    with ledger_in(store, cleared=cleared, map_index=map_index, **options) as ledger:
        ledger.expect(writes)
        return [ledger.run_once(one, send) for one in writes]


def uncertain():
    return FsmUncertainWriteError("POST", "/x", "no response", "2026-01-01T00:00:00+00:00", {"propertyID": 7})


def test_a_retry_and_a_cleared_task_get_the_result_and_send_nothing(store):
    send = Sender()

    results = [attempt(store, send, write(), cleared=cleared) for cleared in (0, 0, 1)]

    assert results == [[{"id": 1}]] * 3
    assert send.sent == 1


def test_an_intent_without_a_result_is_uncertain(store):
    with pytest.raises(Killed):
        attempt(store, Sender(Killed()), write())

    for cleared in (0, 1):
        with pytest.raises(FsmUncertainWriteError, match="propertyID 7") as caught:
            attempt(store, Sender(), write(), cleared=cleared)
        assert caught.value.attempted_at.startswith("20")
    assert attempt(store, Sender(), write(), repeat_uncertain=True) == [{"id": 1}]


@pytest.mark.parametrize("asks_again", ["find", "repeat"])
def test_a_request_has_the_time_to_arrive_before_it_is_looked_up_or_sent_again(store, asks_again, caplog):
    caplog.set_level("INFO")
    with pytest.raises(Killed):
        attempt(store, Sender(Killed()), write())
    killed_at = time.monotonic()
    with pytest.raises(FsmUncertainWriteError):
        attempt(store, Sender(), write(), max_flight=60)
    assert time.monotonic() - killed_at < 5

    def look():
        return {"id": 2} if time.monotonic() - killed_at > 1 else None

    with ledger_in(store, max_flight=2.5, repeat_uncertain=asks_again == "repeat") as ledger:
        result = ledger.run_once(write(), look, find=look if asks_again == "find" else None)

    assert result == {"id": 2}
    assert caplog.text.count("Waiting for a request that may be on its way") == 1


def test_the_request_of_an_edited_write_has_the_time_to_arrive_too(store):
    with pytest.raises(Killed):
        attempt(store, Sender(Killed()), write("before"))
    killed_at = time.monotonic()
    send = Sender()

    attempt(store, send, write("after"), cleared=1, max_flight=2.5, repeat_uncertain=True)

    assert time.monotonic() - killed_at > 1
    assert send.sent == 1


def test_a_request_that_is_connected_too_late_is_not_begun(store, service, monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        at = listener.getsockname()
        first = socket.create_connection(at)  # fills the queue
        connection = {
            **service.connection(),
            "host": f"http://127.0.0.1:{at[1]}",
            "extra": {"max_retries": 0},
        }
        monkeypatch.setenv("AIRFLOW_CONN_FSM_LATE", json.dumps(connection))
        received = []

        def accept():
            time.sleep(1.5)
            for _ in range(2):
                with listener.accept()[0] as accepted:
                    accepted.settimeout(5)
                    received.append(accepted.recv(100))

        first.shutdown(socket.SHUT_WR)
        server = threading.Thread(target=accept)
        server.start()
        with ledger_in(store, max_flight=2.0) as ledger:
            hook = FsmHook("fsm_late")
            with pytest.raises(
                FsmConnectionError, match="the connection was ready too late to send anything"
            ):
                ledger.run_once(write(), lambda: hook.create_job(7, {}).as_json())
        server.join()
        first.close()

    assert received == [b"", b""]
    assert store.entries == {}


def test_the_intent_is_stored_before_anything_is_sent(store):
    def send():
        assert "result" not in store.entries[write().key]
        return {"id": 1}

    attempt(store, send, write())

    assert store.entries[write().key]["result"] == {"id": 1}


@IN_AIRFLOW
def test_an_intent_that_cannot_be_stored_is_not_sent():
    class Broken(MemoryStateStore):
        def set(self, key, value, *, retention=None):
            raise RuntimeError("no API server")

    send = Sender()
    with pytest.raises(RuntimeError, match="no API server"):
        attempt(Broken(), send, write())
    assert send.sent == 0


@pytest.mark.parametrize("error", [FsmBadRequestError(400, "POST", "/x"), NothingSentError()])
def test_the_next_attempt_sends_what_was_certainly_not_written(store, error):
    send = Sender(error)
    with pytest.raises(type(error)):
        attempt(store, send, write())

    assert store.entries == {}
    attempt(store, send, write())
    assert len(store.entries) == 1


@pytest.mark.parametrize(
    "error", [uncertain(), FsmRegistrationMismatchError("registered for something else", webhook_id=3)]
)
def test_an_uncertain_write_fails_again_with_the_same_error(store, error):
    for raised in (error, None):
        send = Sender(*[raised] if raised else [])
        with pytest.raises(type(error)) as caught:
            attempt(store, send, write())
        assert str(caught.value) == str(error)
    assert send.sent == 0


def test_only_a_cleared_task_repeats_what_is_done(store):
    send = Sender()
    attempt(store, send, write())

    assert attempt(store, send, write(), repeat_done=True) == [{"id": 1}]
    assert attempt(store, send, write(), repeat_done=True, cleared=1) == [{"id": 2}]
    assert attempt(store, send, write(), repeat_done=True, cleared=1) == [{"id": 2}]


def test_entries_are_found_by_content_not_by_position(store):
    attempt(store, Sender(), write("a"), write("b"))

    send = Sender()
    assert attempt(store, send, write("b"), write("a")) == [{"id": 2}, {"id": 1}]
    assert send.sent == 0


def test_a_key_identifies_a_write_whose_content_has_changed(store, caplog):
    attempt(store, Sender(), write("a", key="PM-1"))

    send = Sender()
    assert attempt(store, send, write("b", key="PM-1")) == [{"id": 1}]
    assert send.sent == 0
    assert "'PM-1'; the change is not sent" in caplog.text


@pytest.mark.parametrize("cleared", [0, 1])
def test_other_content_is_refused_in_a_retry_and_after_a_clear(store, cleared):
    attempt(store, Sender(), write("a"))

    send = Sender()
    with pytest.raises(
        FsmInputError, match=r"has changed since.*give each write a key|Restore the input"
    ) as caught:
        attempt(store, send, write("b"), cleared=cleared)
    assert "POST /properties/7/jobs (propertyID 7)" in str(caught.value)
    assert send.sent == 0
    assert attempt(store, send, write("a"), cleared=cleared) == [{"id": 1}]


def test_after_a_clear_other_content_is_sent_if_repeating_is_allowed(store):
    attempt(store, Sender(), write("a"))

    assert attempt(store, Sender(), write("b"), cleared=1, repeat_done=True) == [{"id": 1}]


def test_after_a_clear_an_uncertain_write_missing_from_the_input_is_refused(store):
    with pytest.raises(FsmUncertainWriteError):
        attempt(store, Sender(uncertain()), write("a"))

    for options in ({}, {"repeat_done": True}):
        with pytest.raises(FsmInputError, match="if_uncertain"):
            attempt(store, Sender(), write("b"), cleared=1, **options)
    assert attempt(store, Sender(), write("b"), cleared=1, repeat_uncertain=True) == [{"id": 1}]


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ([write("a"), write("b")], [write("b")], False),
        ([write("a")], [write("a"), write("b")], False),
        ([write("a"), write("b")], [write("b"), write("c")], True),
        ([write("a", key="A")], [write("a", key="B")], False),
        ([write("a", key="A")], [write("b")], True),
        ([write("a")], [write("a", key="A")], True),
        ([write("a", key="A"), write("b")], [write("c", key="C")], True),
        ([write("a", key="A"), write("b", key="B")], [write("a", key="A"), write("c", key="C")], False),
    ],
)
def test_a_cleared_list_may_change_unless_a_new_write_may_be_a_missing_one(store, before, after, refused):
    attempt(store, Sender(), *before)
    known, send = len(store.entries), Sender()

    if refused:
        with pytest.raises(FsmInputError, match="is new, and may be the same"):
            attempt(store, send, *after, cleared=1)
        assert send.sent == 0
    else:
        attempt(store, send, *after, cleared=1)
        attempt(store, send, *after, cleared=1)
        assert send.sent == len(store.entries) - known == len({one.key for one in after + before}) - known


@IN_AIRFLOW
def test_a_key_is_not_enough_in_a_cleared_mapped_task(store):
    attempt(store, Sender(), write("a", key="A"), map_index=0)

    send = Sender()
    with pytest.raises(FsmInputError, match=r"before it was cleared.*\(propertyID 7\).*another map index"):
        attempt(store, send, write("b", key="B"), cleared=1, map_index=0)
    assert send.sent == 0
    again = attempt(store, send, write("b", key="B"), cleared=1, map_index=0, repeat_done=True)
    assert again == [{"id": 1}]


REFUSALS = [FsmConflictError(409, "POST", "/x"), NothingSentError(), FsmRateLimitedError(429, "POST", "/x")]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("first", ["error", "intent"])
def test_a_refusal_leaves_an_uncertain_write_uncertain(store, first, refusal):
    with pytest.raises((FsmUncertainWriteError, Killed)):
        attempt(store, Sender(uncertain() if first == "error" else Killed()), write())
    before = store.entries

    for cleared in (1, 2):
        with pytest.raises((FsmError, NothingSentError)) as caught:
            attempt(store, Sender(refusal), write(), cleared=cleared, repeat_uncertain=True)
        assert store.entries == before
        if isinstance(refusal, FsmConflictError):
            assert isinstance(caught.value, FsmUncertainWriteError)
            assert "another attempt at it failed: POST /x returned HTTP 409" in str(caught.value)
            assert caught.value.attempted_at == before[write().key]["sent"][2] or first == "error"
        else:
            assert caught.value is refusal

    with pytest.raises(FsmUncertainWriteError):
        attempt(store, Sender(), write(), cleared=3)


def test_a_refusal_keeps_the_earlier_result(store):
    attempt(store, Sender(), write())
    refusal = FsmConflictError(409, "POST", "/x")

    with pytest.raises(FsmConflictError):
        attempt(store, Sender(refusal), write(), cleared=1, repeat_done=True)
    assert attempt(store, Sender(), write(), cleared=1) == [{"id": 1}]


@pytest.mark.parametrize(
    ("first", "says"),
    [(None, "is made: 1"), (uncertain(), "is uncertain as well"), ("kill", "is uncertain")],
)
@pytest.mark.parametrize("second", [uncertain(), "kill"])
def test_a_second_uncertain_write_still_reports_the_first(store, first, says, second):
    errors = [Killed() if error == "kill" else error for error in (first, second)]
    with suppress(FsmUncertainWriteError, Killed):
        attempt(store, Sender(*filter(None, errors[:1])), write())
    repeat = {"repeat_done": True, "repeat_uncertain": True}
    with pytest.raises((FsmUncertainWriteError, Killed)):
        attempt(store, Sender(errors[1]), write(), cleared=1, **repeat)

    with pytest.raises(FsmUncertainWriteError, match=says):
        attempt(store, Sender(), write(), cleared=1)


def test_no_intent_is_stored_before_prepare_succeeds(store):
    def fail():
        assert store.entries == {}
        raise LookupError("no connection")

    with ledger_in(store) as ledger, pytest.raises(LookupError):
        ledger.run_once(write(), Sender(), prepare=fail)
    assert store.entries == {}
    attempt(store, Sender(), write())
    with ledger_in(store) as ledger:
        assert ledger.run_once(write(), Sender(), prepare=fail) == {"id": 1}


@pytest.mark.parametrize("first", [None, uncertain()])
def test_a_wait_withdraws_the_intent(store, first):
    if first:
        with pytest.raises(FsmUncertainWriteError):
            attempt(store, Sender(first), write())
    before, ledger = store.entries, ledger_in(store, repeat_uncertain=True)

    class Stop(Event):
        def wait(self, timeout):
            assert store.entries == before
            raise Killed

    def send():
        ledger.wait(0.001, Event())
        assert store.entries[write().key]["sent"]
        ledger.wait(LONG_WAIT, Stop())

    with pytest.raises(Killed):
        ledger.run_once(write(), send)
    assert store.entries == before
    ledger.store()
    assert store.entries == before


def test_a_stopped_wait_sends_nothing(store):
    stopping = Event()
    stopping.set()
    with ledger_in(store) as ledger, pytest.raises(NothingSentError):
        ledger.run_once(write(), lambda: ledger.wait(100, stopping))
    assert store.entries == {}


@IN_AIRFLOW
def test_nothing_is_sent_if_the_intent_cannot_be_stored_after_a_wait(store):
    ledger, sent = ledger_in(store), []

    def send():
        store.set = broken
        ledger.wait(0.001, Event())
        sent.append(1)

    def broken(key, value, *, retention=None):
        raise RuntimeError("no API server")

    with pytest.raises(RuntimeError):
        ledger.run_once(write(), send)
    del store.set
    ledger.store()
    assert (store.entries, sent) == ({}, [])


@IN_AIRFLOW
def test_pages_are_stored_in_order(store):
    ledger, numbers = ledger_in(store), iter(range(9 * PAGE_ENTRIES))
    for pages in (7, 2):
        for number in islice(numbers, pages * PAGE_ENTRIES):
            ledger.record(write(str(number)), {"id": 1})
        ledger.store()

    assert list(store.kept) == [f"fsm_writes_{number}" for number in range(9)]


@IN_AIRFLOW
def test_the_check_of_a_replaced_attempt_fails_even_without_changes(store):
    ledger = ledger_in(store)

    def replaced(key, value, *, retention=None):
        raise RuntimeError("no such task instance")

    store.set = replaced
    ledger.store()
    with pytest.raises(RuntimeError):
        ledger.check_current()


@IN_AIRFLOW
def test_outside_of_a_task_each_call_sends_with_one_warning(caplog):
    send = Sender()
    for _ in range(2):
        with open_ledger(
            {"ti": context_for(None)["ti"]} if STATE_STORE.is_there else {}, FsmHook()
        ) as ledger:
            assert [ledger.run_once(write(), send) for _ in range(2)] == [{"id": send.sent}] * 2
    assert send.sent == 2
    assert caplog.text.count("This is not run as a task") == 2


@IN_AIRFLOW
def test_entries_on_many_pages_are_found(store):
    writes = [write(str(number)) for number in range(3 * PAGE_ENTRIES + 1)]
    attempt(store, Sender(), *writes)

    assert len(store.kept) == 4
    send = Sender()
    assert [result["id"] for result in attempt(store, send, *writes)] == list(range(1, len(writes) + 1))
    assert send.sent == 0


@IN_AIRFLOW
def test_threads_share_store_calls_and_none_sends_before_its_intent_is_stored():
    class Slow(MemoryStateStore):
        def set(self, key, value, *, retention=None):
            time.sleep(0.01)
            super().set(key, value)

    store, writes = Slow(), [write(str(number)) for number in range(64)]

    def send_with(one):
        def send():
            assert "result" not in store.entries[one.key]
            return {"id": 1}

        return send

    with ledger_in(store) as ledger, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: ledger.run_once(one, send_with(one)), writes))

    assert all("result" in entry for entry in store.entries.values())
    assert len(store.entries) == 64
    assert store.sets < 64


@IN_AIRFLOW
def test_a_failed_store_is_made_up_for_by_the_next():
    class Flaky(MemoryStateStore):
        failures = 0

        def set(self, key, value, *, retention=None):
            if self.failures:
                self.failures -= 1
                raise RuntimeError("no API server")
            super().set(key, value)

    store = Flaky()
    with ledger_in(store) as ledger:
        ledger.run_once(write("a"), Sender())
        store.failures = 1
        with pytest.raises(RuntimeError):
            ledger.run_once(write("b"), Sender())
        ledger.run_once(write("c"), Sender())
    assert [entry["result"] for entry in store.entries.values()] == [{"id": 1}] * 2
