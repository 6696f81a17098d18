"""Deliveries to two workers over one database that fails, in an order drawn from a seed.

Of the package are the receivers, what they decide, and how they store a delivery in Airflow's
database. Of the simulation are the sender and the failures. A step is one statement or COMMIT of
the transaction of a delivery: one generator of random numbers draws whose step is next, so that a
seed is a day. The two workers are two receivers in this process.
"""

import asyncio
import contextlib
import json
import logging
import random
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field

from fsm_provider.plugins.webhooks import URL_PREFIX
from fsm_provider.storage import uri_for_records
from tests.unit.plugins import signing
from tests.unit.plugins.receivers import TOKEN, Clock

DELIVERIES = 40
MAX_SENDS = 8
"""After so many refusals the sender gives a delivery up."""
MAX_AT_ONCE = 4
PATIENT = 600.0
"""Seconds in which a receiver answers: more than a day takes, as steps wait for their turn."""
IMPATIENT = 0.01
"""As its thread waits at a step, this receiver answers that it was too slow."""
URI = uri_for_records("fsm_default", "jobs")
SECRET = "whsec_" + "c2ltdWxhdGVkLXNlY3JldC0x" * 2
FAILURES = [
    "statement fails",
    "fails under the lock",
    "fails before COMMIT",
    "fails after COMMIT",
    "answers too late",
]
"""What the database does to an attempt. After COMMIT, the delivery is stored and refused."""
attempt_of_thread = ContextVar("attempt_of_thread", default=None)


@dataclass(eq=False)
class Delivery:
    """What the sender wants to be known; a forged one is signed with another secret."""

    number: int
    is_forged: bool = False
    sends: int = 0
    statuses: list = field(default_factory=list)

    @property
    def name(self):
        return f"msg_{self.number}"

    @property
    def body(self):
        return json.dumps({"type": "jobs.created", "id": self.number}).encode()

    def headers(self):
        secret = SECRET.replace("c2lt", "AAAA") if self.is_forged else SECRET
        signed = signing.standard(secret, self.body, identifier=self.name)
        return [(name.encode(), value.encode()) for name, value in signed.items()]


class Attempt:
    """One request for a delivery, whose thread waits at each step until it may go on.

    The event loop calls :meth:`run_to_next_step`; the thread calls :meth:`reach`.

    :ivar step: where the thread waits; None while it runs, and at the end.
    """

    def __init__(self, delivery, worker, failure):
        self.delivery = delivery
        self.worker = worker
        self.failure = failure
        self.step = None
        self.is_over = False
        self.is_answered = False
        self.statements = 0
        self._loop = asyncio.get_running_loop()
        self._waits = asyncio.Event()
        self._may_go_on = threading.Semaphore(0)
        self.request = None

    @property
    def is_late(self):
        return self.failure == "answers too late"

    def reach(self, step):
        self.step = step
        self._loop.call_soon_threadsafe(self._waits.set)
        self._may_go_on.acquire()
        self.step = None

    def end(self):
        self.is_over = True
        self._loop.call_soon_threadsafe(self._waits.set)

    def let_go(self):
        self._may_go_on.release(1_000)

    def start(self, request):
        self.request = asyncio.create_task(request)

    async def run_to_next_step(self):
        if self.step is not None:
            self._waits.clear()
            self._may_go_on.release()
        await self._waits.wait()

    def fail_if(self, failure):
        if self.failure == failure:
            raise sqlite3.OperationalError(failure)


class Threads(ThreadPoolExecutor):
    """Tells a receiver's thread which attempt it works for."""

    def submit(self, work, *arguments):
        attempt = attempt_of_thread.get()

        def work_and_end():
            try:
                return work(*arguments)
            finally:
                attempt.end()

        return super().submit(copy_context().run, work_and_end)


class Database:
    """Airflow's database: each statement and COMMIT of an attempt is a step, at which it may fail.

    :ivar writer: the attempt whose transaction holds SQLite's lock for writing.
    """

    def __init__(self, engine):
        self.engine = engine
        self.writer = None
        self._commit = engine.dialect.do_commit

    @contextlib.contextmanager
    def watched(self):
        from sqlalchemy import event

        hooks = [
            ("before_cursor_execute", self._before_statement),
            ("after_cursor_execute", self._after_statement),
        ]
        for name, hook in hooks:
            event.listen(self.engine, name, hook)
        self.engine.dialect.do_commit = self._do_commit
        try:
            yield
        finally:
            del self.engine.dialect.do_commit
            for name, hook in hooks:
                event.remove(self.engine, name, hook)

    def may_go_on(self, attempt):
        """Return whether the lock for writing lets an attempt take its step."""
        return attempt.step != "write" or self.writer in (None, attempt)

    def release(self, attempt):
        if self.writer is attempt:
            self.writer = None

    def _before_statement(self, connection, cursor, statement, *rest):
        attempt = attempt_of_thread.get()
        if attempt is None:
            return
        attempt.reach("read" if statement.startswith("SELECT") else "write")
        attempt.statements += 1
        if attempt.statements == 1:
            attempt.fail_if("statement fails")

    def _after_statement(self, connection, cursor, statement, *rest):
        attempt = attempt_of_thread.get()
        if attempt is None or statement.startswith("SELECT"):
            return
        self.writer = attempt
        attempt.fail_if("fails under the lock")

    def _do_commit(self, connection):
        attempt = attempt_of_thread.get()
        if attempt is None:
            self._commit(connection)
            return
        attempt.reach("COMMIT")
        attempt.fail_if("fails before COMMIT")
        self._commit(connection)
        self.release(attempt)
        attempt.reach("answer")
        attempt.fail_if("fails after COMMIT")


class Day:
    """Some deliveries, the requests that a sender makes for them, and the events in the end.

    A delivery that is refused is sent again; of those that are accepted, some are sent again too.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.counts = Counter()
        self.deliveries = []
        for number in range(DELIVERIES):
            is_forged = self.rng.random() < 0.1
            self.deliveries.append(Delivery(number, is_forged))
        # The sender itself sends some twice.
        self.to_send = self.deliveries + self.rng.sample(self.deliveries, DELIVERIES // 4)
        self.attempts = []
        self.wrong = []

    async def pass_by(self):
        """Let it pass; return what was wrong."""
        from airflow.settings import engine

        self.database = Database(engine)
        self.workers = [await started_worker(PATIENT) for _ in range(2)]
        self.late_workers = [await started_worker(IMPATIENT) for _ in range(2)]
        try:
            with self.database.watched():
                while self.to_send or self.attempts:
                    await self._next_step()
        finally:
            self._end()
        self._check()
        return self.wrong

    def _end(self):
        """Let no thread wait for a step that nobody draws any more."""
        for attempt in self.attempts:
            attempt.let_go()
        for receiver in self.workers + self.late_workers:
            receiver._threads.shutdown(wait=False)
            receiver._configuration._thread.shutdown(wait=False)

    async def _next_step(self):
        ready = [attempt for attempt in self.attempts if self.database.may_go_on(attempt)]
        may_send = self.to_send and len(self.attempts) < MAX_AT_ONCE
        if may_send and (not ready or self.rng.random() < 0.3):
            await self._send()
        else:
            await self._go_on(self.rng.choice(ready))

    async def _send(self):
        delivery = self._next_delivery()
        delivery.sends += 1
        self.counts["requests"] += 1
        failure = self.rng.choice([None] * len(FAILURES) + FAILURES)
        if delivery.is_forged:  # it is refused before the database is asked
            failure = None
        self.counts["failures"] += failure is not None
        worker = self.rng.randrange(2)
        attempt = Attempt(delivery, worker, failure)
        receiver = (self.late_workers if attempt.is_late else self.workers)[worker]
        token = attempt_of_thread.set(attempt)
        attempt.start(status_of(receiver, delivery))
        attempt_of_thread.reset(token)
        self.attempts.append(attempt)
        await self._go_on(attempt)
        if attempt.is_late and not attempt.is_over:
            # Its thread waits in the transaction meanwhile, and goes on.
            self._take_answer(attempt, await attempt.request)

    def _next_delivery(self):
        """Draw a delivery; often one that is under way already, as two of it may race."""
        under_way = [attempt.delivery for attempt in self.attempts]
        racing = [delivery for delivery in self.to_send if delivery in under_way]
        is_racing = racing and self.rng.random() < 0.7
        delivery = self.rng.choice(racing if is_racing else self.to_send)
        self.to_send.remove(delivery)
        return delivery

    async def _go_on(self, attempt):
        await attempt.run_to_next_step()
        if not attempt.is_over:
            return
        self.attempts.remove(attempt)
        self.database.release(attempt)
        status = await attempt.request
        if not attempt.is_answered:
            self._take_answer(attempt, status)

    def _take_answer(self, attempt, status):
        attempt.is_answered = True
        delivery = attempt.delivery
        delivery.statuses.append(status)
        self.counts[f"answered {status}"] += 1
        if delivery.is_forged and status != 401:
            self.wrong.append(f"delivery {delivery.number}: forged, answered {status}")
        elif attempt.failure is None and not delivery.is_forged and status != 200:
            self.wrong.append(f"delivery {delivery.number}: answered {status} without a failure")
        is_refused = status >= 500
        is_answer_lost = status == 200 and self.rng.random() < 0.2
        if (is_refused or is_answer_lost) and delivery.sends < MAX_SENDS:
            self.to_send.append(delivery)

    def _check(self):
        events = events_by_delivery()
        for delivery in self.deliveries:
            count = events.pop(delivery.number, 0)
            self.counts["events"] += count
            if count not in self._right_counts(delivery):
                said = "accepted" if 200 in delivery.statuses else "refused"
                said = f"forged and {said}" if delivery.is_forged else said
                in_words = "1 event" if count == 1 else f"{count} events"
                self.wrong.append(f"delivery {delivery.number}: {said}, {in_words}")
        if events:
            self.wrong.append(f"events of no delivery: {sorted(events)}")

    def _right_counts(self, delivery):
        """Return how many events there may be of a delivery."""
        if delivery.is_forged:
            return {0}
        return {1} if 200 in delivery.statuses else {0, 1}


async def started_worker(response_seconds):
    """Return a receiver, as each worker of an API server has one, that has read its settings."""
    from fsm_provider.plugins.webhooks.config import ReceiverConfiguration
    from fsm_provider.plugins.webhooks.receiver import Receiver

    configuration = ReceiverConfiguration(clock=Clock())
    await configuration.refresh(30.0)
    receiver = Receiver(configuration, response_seconds=response_seconds)
    receiver._threads = Threads(MAX_AT_ONCE)
    return receiver


async def status_of(receiver, delivery):
    """Send a delivery to a receiver; return the status of its answer."""
    messages = []

    async def receive():
        return {"type": "http.request", "body": delivery.body}

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{URL_PREFIX}/fsm_default/jobs/{TOKEN}",
        "headers": delivery.headers(),
    }
    await receiver(scope, receive, send)
    return messages[0]["status"]


def events_by_delivery():
    """Count the asset events by the number of the delivery that they hold."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        extras = [event.extra for event in session.query(AssetEvent)]
    return Counter(extra["id"] for extra in extras)


@contextlib.contextmanager
def configured():
    """Have the asset, and the settings that the receivers read; an empty database before, after."""
    from airflow.models import Variable
    from airflow.models.asset import AssetActive, AssetEvent, AssetModel
    from airflow.utils.session import create_session

    endpoint = {"endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}}}
    Variable.set("fsm_webhooks", json.dumps(endpoint))
    Variable.set("fsm_webhook_secret_tokens_fsm_default_jobs", json.dumps([TOKEN]))
    Variable.set("fsm_webhook_secrets_fsm_default_jobs", json.dumps([SECRET]))
    with create_session() as session:
        asset = AssetModel(name=URI, uri=URI, group="asset")
        session.add(asset)
        session.flush()
        session.add(AssetActive.for_asset(asset))
    try:
        yield
    finally:
        with create_session() as session:
            for table in (AssetEvent, AssetActive, AssetModel, Variable):
                session.query(table).delete()


def drawn_day(seed):
    """Let a drawn day of deliveries pass; return what was wrong, and counts.

    Airflow's database has to be there, without assets.
    """
    logging.disable()
    try:
        with configured():
            day = Day(seed)
            return asyncio.run(day.pass_by()), day.counts
    finally:
        logging.disable(logging.NOTSET)


# --- what the receiver rests on, taken out ---


def without_lock(patch):
    """Look for the asset without locking its row."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select

    from fsm_provider.plugins.webhooks import events

    def find_asset(session, uri):
        return session.scalar(select(AssetModel).where(AssetModel.uri == uri))

    patch.setattr(events, "_lock_asset", find_asset)


def remembered_by_worker(patch):
    """Let each worker remember by itself what it has stored."""
    from fsm_provider.plugins.webhooks import events

    stored = set()

    def is_remembered(session, asset, delivery):
        known = (attempt_of_thread.get().worker, delivery)
        is_known = known in stored
        stored.add(known)
        return is_known

    patch.setattr(events, "_is_recorded", is_remembered)


def not_remembered(patch):
    """Store each request as an event."""
    from fsm_provider.plugins.webhooks import events

    patch.setattr(events, "_is_recorded", lambda *_: False)


def answered_before_commit(patch):
    """Say "accepted" whatever becomes of the transaction."""
    from fsm_provider.plugins.webhooks import receiver

    record = receiver.record_delivery

    def record_or_not(*delivery):
        with contextlib.suppress(Exception):
            return record(*delivery)
        return "accepted"

    patch.setattr(receiver, "record_delivery", record_or_not)


def not_verified(patch):
    """Believe each signature."""
    from fsm_provider.plugins.webhooks import signature

    patch.setattr(signature, "_is_signed_with_any", lambda *_: True)


BROKEN = {
    "the asset's row is not locked": without_lock,
    "each worker remembers by itself": remembered_by_worker,
    "repeats are not looked for": not_remembered,
    "accepted is said before COMMIT": answered_before_commit,
    "signatures are not verified": not_verified,
}
"""By what is broken, how to break it."""
