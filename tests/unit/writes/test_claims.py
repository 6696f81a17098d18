"""Of attempts that share a ledger in a database, one sends a write, however they interleave or die.

Each attempt is a thread that stops before each of its transactions, around its request, and where it waits
for another one. Hypothesis draws who goes on, and who is killed. A transaction that is killed is rolled back.
"""

import threading
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fsm_provider.api.errors import FsmUncertainWriteError
from fsm_provider.state.entries import SupersededError
from fsm_provider.state.sql_entries import SqlEntries
from fsm_provider.state.sql_tables import check_tables
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Ledger, NothingSentError
from fsm_provider.writes.write import Write

WRITE = Write("POST", "/properties/7/jobs", {"notes": "a"}, {"propertyID": 7}, "PO-1")
RUN, OTHER_RUN = Task("dag", "run", "task", -1), Task("dag", "other", "task", -1)
ATTEMPTS = {"a1": RUN, "a2": RUN, "b1": OTHER_RUN}
LAST = Task("dag", "last", "task", -1)
FOREVER = 1e6
MAX_STEPS = 100
"""More than an attempt needs to its end."""


class KilledError(BaseException):
    """As SIGKILL: nothing catches it."""


class Order(Enum):
    """What an attempt does next."""

    GO = "go"
    KILL = "kill"
    KILL_AT_COMMIT = "kill at commit"
    """In the transaction that it begins, if it does."""
    STOP = "stop"
    """Wait for no other attempt any more."""


class Attempt:
    """An attempt in a thread of its own, which goes one step at a time."""

    def __init__(
        self, database: "Database", name: str, task: Task, *, max_flight: float, again: bool
    ) -> None:
        self.name, self.task = name, task
        self.outcome: object = None
        self.is_done = self.is_sending = self.was_killed = False
        self._database, self._max_flight, self._again = database, max_flight, again
        self._order = Order.GO
        self._resume, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, order: Order) -> None:
        """Have it go to its next stop, or to its end."""
        self._order = order
        self._resume.release()
        self._paused.acquire()

    def finish(self) -> None:
        """Have it go on to its end; it waits for no other."""
        for _ in range(MAX_STEPS):
            if self.is_done:
                self._thread.join()
                return
            self.step(Order.STOP)
        self.step(Order.KILL)
        raise AssertionError(f"{self.name} does not end")

    def pause(self) -> None:
        """Wait for the next order."""
        self._paused.release()
        self._resume.acquire()
        if self._order is Order.KILL:
            raise KilledError

    def is_set(self) -> bool:
        """Stand for the event that ends a wait."""
        return False

    def wait(self, _seconds: float) -> bool:
        """Stand for it, too."""
        self.pause()
        return self._order is Order.STOP

    def _run(self) -> None:
        self._resume.acquire()
        engine = self._database.engine()
        sqlalchemy.event.listen(engine, "begin", lambda _: self.pause())
        sqlalchemy.event.listen(engine, "commit", self._die_at_commit)
        try:
            entries = SqlEntries(
                engine, base_url="http://service", scope="", task=self.task, attempt=self.name
            )
            with Ledger(
                entries,
                task=self.task,
                once_per_key=True,
                max_flight=self._max_flight,
                repeat_uncertain=self._again,
            ) as ledger:
                ledger.load([WRITE])
                self.outcome = ledger.run_once(WRITE, self._send, stopping=self)
        except (KilledError, FsmUncertainWriteError, SupersededError, NothingSentError) as error:
            self.outcome = self.outcome or error
            self.was_killed = isinstance(error, KilledError)
        finally:
            engine.dispose()
            self.is_done = True
            self._paused.release()

    def _die_at_commit(self, _connection: object) -> None:
        if self._order is Order.KILL_AT_COMMIT:
            raise KilledError

    def _send(self) -> dict[str, int]:
        self.is_sending = True
        self.pause()
        result = self._database.receive(self)
        self.pause()
        return result


class Database:
    """A SQLite file, and the service that is written to."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder / 'ledger.db'}"
        self.sent: list[Attempt] = []
        self.attempts: list[Attempt] = []
        self.overlaps: list[tuple[str, str]] = []
        """Tasks of two runs whose requests were under way at one time."""
        check_tables(engine := self.engine())
        engine.dispose()

    def engine(self) -> sqlalchemy.engine.Engine:
        engine = sqlalchemy.create_engine(self._url)
        sqlalchemy.event.listen(
            engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF")
        )
        return engine

    def age(self) -> None:
        """Let everything have been sent so long ago that it has arrived, or never will."""
        long_ago = "UPDATE fsm_ledger SET entry = json_set(entry, '$.sent[2]', '2000-01-01T00:00:00+00:00')"
        engine = self.engine()
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(long_ago))
        engine.dispose()

    def receive(self, sender: Attempt) -> dict[str, int]:
        self.sent.append(sender)
        others = [one for one in self.attempts if one.is_sending and not one.is_done]
        self.overlaps += [(one.name, sender.name) for one in others if one.task != sender.task]
        return {"id": len(self.sent)}


steps = st.lists(
    st.tuples(
        st.sampled_from(list(ATTEMPTS)),
        st.sampled_from([*[Order.GO] * 8, Order.KILL, Order.KILL_AT_COMMIT]),
    ),
    max_size=45,
)
flights = st.one_of(
    st.just(dict.fromkeys(ATTEMPTS, FOREVER)),
    st.fixed_dictionaries({name: st.sampled_from([0.0, FOREVER]) for name in ATTEMPTS}),
)


def play(database: Database, plan: list, flights: dict[str, float], *, again: bool = False) -> list[Attempt]:
    attempts = {
        name: Attempt(database, name, task, max_flight=flights[name], again=again)
        for name, task in ATTEMPTS.items()
    }
    database.attempts = list(attempts.values())
    for name, order in plan:
        if not attempts[name].is_done:
            attempts[name].step(order)
            note(f"{name}: {order.value}; {len(database.sent)} sent")
    for attempt in attempts.values():
        attempt.finish()
    return database.attempts


@settings(deadline=None, max_examples=150)
@given(plan=steps, flights=flights)
def test_a_key_is_sent_once_and_what_is_said_of_it_is_so(plan: list, flights: dict[str, float]) -> None:
    with TemporaryDirectory() as folder:
        database = Database(Path(folder))
        attempts = play(database, plan, flights)
        database.age()
        last = Attempt(database, "c1", LAST, max_flight=0.0, again=False)
        last.finish()

    assert len(database.sent) <= 1
    results = [one.outcome for one in (*attempts, last) if isinstance(one.outcome, dict)]
    assert all(result == {"id": 1} for result in results)
    if isinstance(last.outcome, dict):
        assert database.sent
    else:
        # Uncertain is only what somebody was about to send, and died.
        assert isinstance(last.outcome, FsmUncertainWriteError)
        assert any(one.was_killed for one in attempts)


@settings(deadline=None, max_examples=150)
@given(plan=steps, flights=flights)
def test_what_is_uncertain_is_sent_again_where_asked_and_no_request_is_forgotten(
    plan: list, flights: dict[str, float]
) -> None:
    with TemporaryDirectory() as folder:
        database = Database(Path(folder))
        play(database, plan, flights, again=True)
        database.age()
        last = Attempt(database, "c1", LAST, max_flight=0.0, again=True)
        last.finish()

    senders = [one.name for one in database.sent]
    assert len(senders) == len(set(senders))
    assert isinstance(last.outcome, dict)
    assert last.outcome["id"] <= len(senders)
    if set(flights.values()) == {FOREVER}:
        assert database.overlaps == []
