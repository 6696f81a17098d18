"""A write is made once, whatever becomes of the task that makes it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fsm_provider.api import (
    FsmConflictError,
    FsmInputError,
    FsmRegistrationMismatchError,
    FsmUncertainWriteError,
)
from fsm_provider.ledger import PAGE_ENTRIES, Ledger, NothingSentError, Write
from tests.unit.state_store import MemoryStateStore, context_of


def write(content="a", key=None):
    return Write("POST", "/properties/7/jobs", {"notes": content}, {"propertyID": 7}, key)


@pytest.fixture
def store():
    return MemoryStateStore()


class Sender:
    """Stands for the service: counts what reaches it."""

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
    with Ledger.of(context_of(store, cleared=cleared, map_index=map_index), **options) as ledger:
        ledger.expect(writes)
        return [ledger.once(one, send) for one in writes]


def uncertain():
    return FsmUncertainWriteError("POST", "/x", "no answer", "2026-01-01T00:00:00+00:00", {"propertyID": 7})


def test_a_retry_and_a_cleared_task_get_the_result_and_send_nothing(store):
    send = Sender()

    results = [attempt(store, send, write(), cleared=cleared) for cleared in (0, 0, 1)]

    assert results == [[{"id": 1}]] * 3
    assert send.sent == 1


def test_an_intent_without_a_result_is_uncertain(store):
    class Killed(BaseException):
        pass

    with pytest.raises(Killed):
        attempt(store, Sender(Killed()), write())

    for cleared in (0, 1):
        with pytest.raises(FsmUncertainWriteError, match="propertyID 7") as caught:
            attempt(store, Sender(), write(), cleared=cleared)
        assert caught.value.attempted_at.startswith("20")
    assert attempt(store, Sender(), write(), repeat_uncertain=True) == [{"id": 1}]


def test_the_intent_is_stored_before_anything_is_sent(store):
    def send():
        assert "result" not in store.entries[write().key]
        return {"id": 1}

    attempt(store, send, write())

    assert store.entries[write().key]["result"] == {"id": 1}


def test_an_intent_that_cannot_be_stored_is_not_sent():
    class Broken(MemoryStateStore):
        def set(self, key, value, *, retention=None):
            raise RuntimeError("no API server")

    send = Sender()
    with pytest.raises(RuntimeError, match="no API server"):
        attempt(Broken(), send, write())
    assert send.sent == 0


@pytest.mark.parametrize("error", [FsmConflictError(409, "POST", "/x"), NothingSentError()])
def test_what_has_certainly_not_happened_is_made_by_the_next_try(store, error):
    send = Sender(error)
    with pytest.raises(type(error)):
        attempt(store, send, write())

    assert store.entries == {}
    attempt(store, send, write())
    assert len(store.entries) == 1


@pytest.mark.parametrize(
    "error", [uncertain(), FsmRegistrationMismatchError("registered for something else", webhook_id=3)]
)
def test_what_may_have_happened_is_reported_again_as_it_was(store, error):
    for tries in (error, None):
        send = Sender(*[tries] if tries else [])
        with pytest.raises(type(error)) as caught:
            attempt(store, send, write())
        assert str(caught.value) == str(error)
    assert send.sent == 0


def test_another_is_made_for_a_cleared_task_alone(store):
    send = Sender()
    attempt(store, send, write())

    assert attempt(store, send, write(), repeat_made=True) == [{"id": 1}]
    assert attempt(store, send, write(), repeat_made=True, cleared=1) == [{"id": 2}]
    assert attempt(store, send, write(), repeat_made=True, cleared=1) == [{"id": 2}]


def test_entries_belong_to_content_and_not_to_position(store):
    attempt(store, Sender(), write("a"), write("b"))

    send = Sender()
    assert attempt(store, send, write("b"), write("a")) == [{"id": 2}, {"id": 1}]
    assert send.sent == 0


def test_a_key_outlives_a_change_of_content(store, caplog):
    attempt(store, Sender(), write("a", key="PM-1"))

    send = Sender()
    assert attempt(store, send, write("b", key="PM-1")) == [{"id": 1}]
    assert send.sent == 0
    assert "'PM-1'; what has changed since is not sent" in caplog.text


def test_a_retry_with_other_content_is_refused_and_a_cleared_task_is_not(store):
    attempt(store, Sender(), write("a"))

    send = Sender()
    with pytest.raises(FsmInputError, match=r"has changed since.*\(propertyID 7\).*give a key"):
        attempt(store, send, write("b"))
    assert send.sent == 0
    assert attempt(store, send, write("b"), cleared=1) == [{"id": 1}]


def test_a_cleared_mapped_task_with_other_content_is_refused_unless_that_is_meant(store):
    attempt(store, Sender(), write("a"), map_index=0)

    send = Sender()
    with pytest.raises(FsmInputError, match=r"before it was cleared.*\(propertyID 7\).*another order"):
        attempt(store, send, write("b"), cleared=1, map_index=0)
    assert send.sent == 0
    assert attempt(store, send, write("b"), cleared=1, map_index=0, repeat_made=True) == [{"id": 1}]


def test_without_a_store_a_write_is_made_once_in_a_try_and_the_log_says_so_once(caplog):
    send = Sender()
    with Ledger.of(context_of(None)) as ledger:
        assert [ledger.once(write(), send) for _ in range(2)] == [{"id": 1}] * 2
    assert caplog.text.count("keeps no state for a task") == 1


def test_many_entries_are_found_again(store):
    writes = [write(str(number)) for number in range(3 * PAGE_ENTRIES + 1)]
    attempt(store, Sender(), *writes)

    assert len(store.kept) == 4
    send = Sender()
    assert [result["id"] for result in attempt(store, send, *writes)] == list(range(1, len(writes) + 1))
    assert send.sent == 0


def test_threads_share_the_storing_and_none_sends_before_its_intent_is_stored():
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

    with Ledger.of(context_of(store)) as ledger, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: ledger.once(one, send_with(one)), writes))

    assert all("result" in entry for entry in store.entries.values())
    assert len(store.entries) == 64
    assert store.sets < 64


def test_what_one_thread_could_not_store_is_stored_by_the_next():
    class Flaky(MemoryStateStore):
        failures = 0

        def set(self, key, value, *, retention=None):
            if self.failures:
                self.failures -= 1
                raise RuntimeError("no API server")
            super().set(key, value)

    store = Flaky()
    with Ledger.of(context_of(store)) as ledger:
        ledger.once(write("a"), Sender())
        store.failures = 1
        with pytest.raises(RuntimeError):
            ledger.once(write("b"), Sender())
        ledger.once(write("c"), Sender())
    assert [entry["result"] for entry in store.entries.values()] == [{"id": 1}] * 2
