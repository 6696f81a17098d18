"""Of the attempts of a task whose ledger is in Variables, one at most sends a write.

Two attempts are stopped before each message to the supervisor, in turn. A kill comes at each message, and so
does a database that seems empty.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count, product

import pytest

from fsm_provider.api.errors import FsmInputError, FsmUncertainWriteError
from fsm_provider.state import ledger_retention, variable_store
from fsm_provider.state.entries import SupersededError
from fsm_provider.state.task import Task
from fsm_provider.state.task_store import TaskEntries
from fsm_provider.state.task_variables import LedgerDamagedError
from fsm_provider.state.variable_store import VariableStateStore
from fsm_provider.state.variables import VariableUnreadableError
from fsm_provider.writes.ledger import Ledger
from fsm_provider.writes.write import Write
from tests.capabilities import CONCURRENT_MESSAGES
from tests.unit.supervisor import MemorySupervisor, supervised

TASK = Task("dag", "run", "task", -1)
WRITE = Write("POST", "/properties/7/jobs", {"customerReference": "PO-1"})
MESSAGES = 40
"""More than an attempt sends to the supervisor."""
REFUSALS = (SupersededError, LedgerDamagedError, VariableUnreadableError, FsmUncertainWriteError)
OLD_RUN = [(1, "a1"), (2, "a2"), (3, "a3")]
PAIRS = {
    "a retry": ([], (1, "b1"), (2, "b2")),
    "a retry after one that never began": ([], (1, "b1"), (3, "b3")),
    "of a run made again": (OLD_RUN, (1, "b1"), (2, "b2")),
    "of two runs with one id": ([], (3, "a3"), (1, "b1")),
    "of two runs with one id and the same number": ([], (1, "a1"), (1, "b1")),
}


class KilledError(BaseException):
    """As SIGKILL: nothing catches it."""


class Attempts:
    """Runs attempts of one task; each sends the write unless it knows better."""

    def __init__(self, supervisor: MemorySupervisor) -> None:
        self.supervisor = supervisor
        self.sent: list[str] = []

    def run(self, try_number: int, attempt: str, *, write: Write | None = WRITE) -> object:
        def send() -> dict[str, str]:
            self.sent.append(attempt)
            return {"by": attempt}

        with Ledger(TaskEntries(VariableStateStore(TASK, try_number, attempt))) as ledger:
            return ledger.run_once(write, send) if write else ledger.store()

    def at_message(self, wanted: int, action: Callable[[], None]) -> "count[int]":
        """Do something before a message; the counter gives the number of messages."""
        numbers = count()

        def before(message: object) -> None:
            if next(numbers) == wanted:
                action()

        self.supervisor.before = before
        return numbers


@contextmanager
def new_attempts() -> Iterator[Attempts]:
    with supervised() as supervisor:
        yield Attempts(supervisor)


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    with new_attempts() as running:
        yield running


def kill() -> None:
    raise KilledError


class Stepped:
    """Two attempts as threads, of which each stops before a message of a given number until it is let go."""

    def __init__(self, attempts: Attempts, stops: dict[str, int]) -> None:
        self._attempts, self._stops = attempts, stops
        self._numbers = {name: count() for name in stops}
        self._stopped = {name: threading.Event() for name in stops}
        self._released = {name: threading.Event() for name in stops}
        self._threads: dict[str, threading.Thread] = {}
        attempts.supervisor.before = self._before

    def _before(self, message: object) -> None:
        name = threading.current_thread().name
        if next(self._numbers[name]) == self._stops[name]:
            self._stopped[name].set()
            assert self._released[name].wait(10)

    def start(self, try_number: int, name: str) -> None:
        def body() -> None:
            with suppress(*REFUSALS):
                self._attempts.run(try_number, name)
            self._stopped[name].set()

        self._threads[name] = threading.Thread(target=body, name=name)
        self._threads[name].start()
        assert self._stopped[name].wait(10)

    def finish(self, name: str) -> None:
        self._released[name].set()
        self._threads[name].join(10)
        assert not self._threads[name].is_alive()


@CONCURRENT_MESSAGES.needed
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_of_two_attempts_one_at_most_sends(pair: str, first: int) -> None:
    earlier, *both = PAIRS[pair]
    leading, following = both[first], both[1 - first]
    sent_by_all = 0
    for stop, other_stop in product(range(MESSAGES), range(0, MESSAGES, 3)):
        with new_attempts() as attempts:
            for attempt in earlier:
                attempts.run(*attempt, write=None)
            stepped = Stepped(attempts, {leading[1]: stop, following[1]: other_stop})
            stepped.start(*leading)
            stepped.start(*following)
            stepped.finish(leading[1])
            stepped.finish(following[1])
        assert len(attempts.sent) <= 1, (stop, other_stop, attempts.sent)
        sent_by_all += len(attempts.sent)
    assert sent_by_all


def test_an_attempt_that_is_killed_at_any_message_is_known_to_the_next() -> None:
    killed_after_sending = 0
    for stop in range(MESSAGES):
        with new_attempts() as attempts:
            attempts.at_message(stop, kill)
            with suppress(KilledError):
                attempts.run(1, "a1")
            attempts.at_message(-1, kill)
            sent = list(attempts.sent)
            try:
                attempts.run(2, "a2")
            except FsmUncertainWriteError:
                assert attempts.sent == sent
            else:
                assert attempts.sent in (["a1"], ["a2"])
            killed_after_sending += sent == ["a1"]
    assert 0 < killed_after_sending < MESSAGES


@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 100])
def test_variables_that_seem_absent_are_not_taken_for_it(hidden: int) -> None:
    for stop in range(MESSAGES):
        with new_attempts() as attempts:
            attempts.run(1, "a1")
            attempts.at_message(stop, partial(setattr, attempts.supervisor, "hiding", hidden))
            with suppress(*REFUSALS):
                attempts.run(2, "a2")
            attempts.supervisor.hiding = 0
            with suppress(*REFUSALS):
                attempts.run(3, "a3")
            assert attempts.sent == ["a1"]


def test_an_attempt_that_was_replaced_stores_nothing_more(attempts: Attempts) -> None:
    store = VariableStateStore(TASK, 1, "a1")
    VariableStateStore(TASK, 2, "a2")

    with pytest.raises(SupersededError, match="attempt 1, which sends nothing more"):
        store.set("key", 1)


def test_the_latest_value_is_returned(attempts: Attempts) -> None:
    for number, attempt in enumerate(("a1", "a2", "a3"), start=1):
        store = VariableStateStore(TASK, number, attempt)
        assert store.get("key") == (number - 1 if number > 1 else None)
        store.set("key", number)

    # A run made again under the same ID begins with attempt 1.
    assert VariableStateStore(TASK, 1, "b1").get("key") == 3
    assert VariableStateStore(Task("dag", "run", "task", 0), 1, "b1").get("key") is None


def test_it_is_known_whether_writes_were_recorded(attempts: Attempts) -> None:
    assert not VariableStateStore.has_writes(TASK)
    attempts.run(1, "a1", write=None)
    assert not VariableStateStore.has_writes(TASK)
    attempts.run(2, "a2")
    assert VariableStateStore.has_writes(TASK)
    attempts.run(3, "a3", write=None)
    assert VariableStateStore.has_writes(TASK)
    assert not VariableStateStore.has_writes(Task("dag", "run", "task", 0))


def test_variables_that_were_deleted_meanwhile_stop_the_attempt(attempts: Attempts) -> None:
    store = VariableStateStore(TASK, 1, "a1")
    attempts.supervisor.variables.clear()

    with pytest.raises(LedgerDamagedError, match=r"somebody has deleted Variables fsm_ledger\.\w+\.\*: what"):
        store.set("key", 1)


@pytest.mark.parametrize("name", ["key", "keys", "1", "1b", "weeks"])
@pytest.mark.parametrize("value", ["nonsense", "3", None])
def test_a_damaged_variable_is_named_and_nothing_is_taken_for_unsent(
    attempts: Attempts, name: str, value: str | None
) -> None:
    VariableStateStore(TASK, 1, "a1").set("key", 1)
    (variable,) = [key for key in attempts.supervisor.variables if key.endswith(f".{name}")]
    attempts.supervisor.variables.pop(variable)
    if value is not None:
        attempts.supervisor.variables[variable] = value
    cannot_be_seen = (value is None) is (name != "key") and value != "nonsense"

    with nullcontext() if cannot_be_seen else pytest.raises(LedgerDamagedError, match=variable):
        VariableStateStore(TASK, 2, "a2").get("key")


class Today(datetime):
    """A clock that shows a day of 2026."""

    day = 0

    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 1, 5, tzinfo=tz) + timedelta(days=cls.day)


def test_old_ledgers_are_deleted_by_later_runs_and_others_stay(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (variable_store, ledger_retention):
        monkeypatch.setattr(module, "datetime", Today)
    for day, run, try_number in (
        (0, "old", 1),
        (1, "cleared", 1),
        (30, "young", 1),
        (80, "cleared", 2),
        (98, "new", 1),
    ):
        monkeypatch.setattr(Today, "day", day)
        store = VariableStateStore(Task("dag", run, "task", -1), try_number, f"a{try_number}")
        store.set("any", run)

    variables = attempts.supervisor.variables
    assert {value for key, value in variables.items() if key.endswith(".any")} == {
        '"cleared"',
        '"young"',
        '"new"',
    }
    (weeks,) = [json.loads(value) for key, value in variables.items() if key.endswith(".weeks")]
    assert weeks == ["2026-W06", "2026-W13", "2026-W16"]


@pytest.mark.parametrize("days", ["6", "-1", "ninety"])
def test_a_bad_retention_is_refused_before_anything_is_sent(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, days: str
) -> None:
    monkeypatch.setenv("AIRFLOW__FSM__LEDGER_RETENTION_DAYS", days)

    with pytest.raises(FsmInputError, match=r"ledger_retention_days of \[fsm\] is not a number of days"):
        attempts.run(1, "a1")
    assert attempts.sent == []


def test_names_suit_every_airflow(attempts: Attempts) -> None:
    task = Task("d" * 250, "r/" * 100, "t" * 250, 1000)
    VariableStateStore(task, 1, "0" * 36).set("fsm_writes_1000", {})

    assert all(len(key) <= 250 and "/" not in key for key in attempts.supervisor.variables)
