"""A model checker of the rules by which a write is sent once: every order of what may happen,
breadth first.

Entries, their changes and guards, what an attempt does next and says at its end are those of the
package. Of the model are the service, transactions, kills, people and time: a step is a transaction
or an event, and a lease runs or is over. ``fence`` is what is assumed of the world: after the lease
of its claim nothing is sent, nor carried out by the service.
"""

import logging
import re
from collections import deque, namedtuple
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from fsm_provider.api import errors
from fsm_provider.api.request import ApiRequest
from fsm_provider.state.task import Task
from fsm_provider.writes import ledger, runner
from fsm_provider.writes.attempt import MADE, WriteAttempt

LOG = logging.getLogger("nobody reads it")
LOG.disabled = True
TASK = Task("d", "r", "t")
MAX_STATES = 40_000
"""More than any scenario has; attempts that go on for ever have no end of them."""
NOW, LEASE = 1, 0.001  # a lease is until 2; when it is over, until 0
ERRORS = {
    "400": errors.FsmBadRequestError(400, "POST", "/"),
    "409": errors.FsmConflictError(409, "POST", "/"),
    "429": errors.FsmRateLimitedError(429, "POST", "/"),
    "lost": errors.FsmUncertainWriteError("POST", "/", "lost", "", {}),
    "stop": errors.FsmNotSentError("not sent"),
}
SCENARIOS = {  # attempts: content, key (0), ways out of uncertain
    "two attempts": {"attempts": "x, x", "refuse": "400 409"},
    "three attempts": {"attempts": "x, x, x", "refuse": "400"},
    "told to stop": {"attempts": "x, x", "stop": True, "crash": False},
    "429 and again": {"attempts": "x, x", "refuse": "400 429", "repeats": 1},
    "create": {"attempts": "x, x create", "refuse": "400 409"},
    "create twice": {"attempts": "x, x create, x create", "crash": False},
    "token": {"attempts": "x token, x token", "refuse": "400 409"},
    "token, again": {"attempts": "x token, x token", "repeats": 1},
    "three tokens": {"attempts": "x token, x token, x token", "crash": False},
    "settle": {"attempts": "x, x", "persons": 1, "refuse": "400 409"},
    "settle twice": {
        "attempts": "x, x, x",
        "persons": 2,
        "refuse": "400",
        "crash": False,
        "lose": False,
    },
    "settle, create": {"attempts": "x, x create", "persons": 2, "refuse": "400"},
    "settle, token": {
        "attempts": "x token, x token, x token",
        "persons": 1,
        "crash": False,
        "lose": False,
    },
    "settle twice, token": {
        "attempts": "x token, x token",
        "persons": 2,
        "refuse": "400",
        "crash": False,
    },
    "edited": {"attempts": "x, y", "persons": 1, "refuse": "400 409"},
    "edited, 409": {"attempts": "x, y, x", "refuse": "409", "crash": False},
    "edited, late": {"attempts": "x, x create, y", "refuse": "409", "crash": False},
    "edited, forgotten": {"attempts": "x, y", "persons": 2, "crash": False},
    "late, forgotten": {"attempts": "x, x", "persons": 2, "crash": False},
    "sent, forgotten": {
        "attempts": "x token, x token, x",
        "persons": 1,
        "stop": True,
        "crash": False,
    },
    "find": {"attempts": "x, x find", "refuse": "400"},
    "find, create": {"attempts": "x, x find create", "persons": 1, "refuse": "400"},
    "find, by hand": {"attempts": "x, x find", "refuse": "400", "by_hand": True},
    "find, by hand, edited": {
        "attempts": "x, y, x find",
        "refuse": "400",
        "by_hand": True,
        "crash": False,
    },
    "impatient": {"attempts": "x, x create", "patient": False},
    "two headers, impatient": {"attempts": "x token, x other create", "patient": False},
    "two keys, find": {"attempts": "x, x1, x1 find"},
    "two keys, both find": {"attempts": "x, x1, x1 find, x find", "crash": False},
}

# at: new, plan, sort, rest, claim, claimed, flight, take, end, dead; allowance: to send what was
# uncertain
Attempt = namedtuple(
    "Attempt",
    "at entry may_resend is_lost is_over answer made tries allowance",
    defaults=("new", 0, False, False, False, "", "", 0, False),
)
Request = namedtuple("Request", "p number key digest token")
Job = namedtuple("Job", "id key digest token")
Look = namedtuple("Look", "key entry command job")
# entries: numbers of Model.table, 0 is none; allowed: further jobs, as it was uncertain; told: ids
# recorded
State = namedtuple("State", "entries attempts jobs persons allowed requests looks told forgotten")


def put(items, at, *new):
    return (*items[:at], *new, *items[at + 1 :])


def throw(error):
    raise error.with_traceback(None)


class OneEntry:
    """A ledger of no more than one entry, which notes the id that a look-up would record."""

    is_shared = True

    def __init__(self, entries):
        self.entries = entries
        self.taken = ""

    def load(self, ids):
        return self.entries

    def entries_of_task(self, task):
        return {}

    def rivals_of(self, entry):
        return []

    def change(self, changes):
        for entry_id, entry in self.entries.items():
            self.taken = changes[entry_id](entry).result_id
        return self.entries


class Client:
    """What the runner asks of the client."""

    def __init__(self, idempotency_header):
        self.settings = SimpleNamespace(
            timeout=0,
            idempotency_header=idempotency_header,
            idempotency_hours=20,
            max_retries=4,
            web_url=None,
        )

    def count_retry(self, delay):
        pass


class Retries:
    """Allows an attempt so many repeats."""

    def __init__(self, tries, repeats):
        self.may_repeat = tries <= repeats

    def delay_after(self, error):
        if not self.may_repeat:
            throw(error)
        return 0


class Ended:
    """A request that has ended."""

    def __init__(self, answer):
        self.answer = answer

    def result(self):
        if self.answer in ERRORS:
            throw(ERRORS[self.answer])
        return {"id": self.answer}


@dataclass
class Model:
    attempts: str
    persons: int = 0
    refuse: str = ""
    crash: bool = True
    lose: bool = True
    stop: bool = False
    repeats: int = 0
    by_hand: bool = False
    patient: bool = True  # attempts wait for the end of a lease before they claim
    fence = True

    def __post_init__(self):
        self.ways = []  # out of uncertain, by attempt
        self.key = []
        self.intended = []
        for spec in self.attempts.split(", "):
            what, *ways = spec.split()
            content = what[0]
            key = what[1:] or "0"
            request = ApiRequest("POST", "/", body=content.encode())
            self.ways.append(ways)
            self.key.append(int(key))
            self.intended.append(ledger.new_entry(TASK, "s", request, key, "job"))
        self.table = [None]
        self.read = [None]
        self.known = {}
        self.name = ""

    # What the package makes of entries; it depends on the arguments alone.
    def memo(self, make, *arguments):
        key = (make.__name__, *arguments)
        if key not in self.known:
            self.known[key] = make(*arguments)
        return self.known[key]

    def number(self, entry):
        entry = replace(entry, read_at=0, error=None)
        text = repr(entry)
        if text not in self.known:
            self.known[text] = len(self.table)
            self.table.append(entry)
            self.read.append(ledger.as_read(replace(entry, read_at=NOW)))
        return self.known[text]

    def seen(self, entry):
        return self.read[entry]

    def changed(self, change, entry):
        seen = self.seen(entry)
        after = change(seen)
        return entry if after is seen else self.number(after)

    def pending(self, p, a, entry, hits=()):
        """Make the write of an attempt as it is now; a look-up finds the hits."""
        write = WriteAttempt(None, self.intended[p])
        if "find" in self.ways[p]:
            write.find = partial(only_one, hits)
        write.retries = Retries(a.tries, self.repeats)
        write.entry = self.seen(entry)
        write.resend_allowed = a.may_resend
        write.is_lost = a.is_lost
        write.finished = a.is_over
        write.response = {"id": a.made}
        write.is_created = bool(a.made)
        write.error = None if a.answer == "stop" else ERRORS.get(a.answer)
        return write

    def runner(self, p, entry=0):
        entries = {self.intended[p].id: self.seen(entry)} if entry else {}
        headers = [way for way in self.ways[p] if way in ("token", "other")]
        client = Client(headers[0] if headers else None)
        hook = SimpleNamespace(client=client, fsm_conn_id="c")
        creates = "create" in self.ways[p]
        return runner.Runner(OneEntry(entries), TASK, hook, client, create_uncertain=creates)

    def loaded(self, p, entry):
        write = WriteAttempt(None, self.intended[p])
        self.runner(p, entry).load([write])
        return write.resend_allowed

    def sorted(self, p, a, hits):
        by = self.runner(p, a.entry)
        by._route(self.pending(p, a, a.entry, hits))
        if by.ledger.taken:
            return a._replace(at="take", made=by.ledger.taken)
        if by._ready:
            return a._replace(at="claim")
        return a._replace(at="rest" if by._blocked else "end")

    def claimed(self, p, a, entry):
        self.name = f"{p}.{a.tries}"
        write = self.pending(p, a, a.entry)
        by = self.runner(p)
        claim = by._claim_for(write)
        change = partial(ledger.claim, claim, self.seen(a.entry), LEASE, by._key_lifetime)
        after = self.changed(change, entry)
        return after, self.table[after].owner == claim.owner

    def recorded(self, p, a, entry, is_taken):
        claim = self.seen(a.entry)
        seen = self.seen(entry)
        if seen.owner != claim.owner:
            claim = replace(claim, lease_until=0)
        by = self.runner(p)
        write = self.pending(p, a, a.entry)
        by._take_end(write, claim, Ended(a.answer))
        after = by._to_record[claim.id](seen)
        if is_taken and after.state == "done" and after is not seen:
            after = ledger.mark_conflict(after, "", seen)
        a = a._replace(
            may_resend=write.resend_allowed,
            is_lost=write.is_lost,
            is_over=write.finished or a.answer == "stop",
            made=a.answer if write.is_created else "",
        )
        return (entry if after is seen else self.number(after)), a

    def said(self, p, a, entry):
        return self.pending(p, a, entry).outcome

    # Steps: a label, and the state after it.
    def steps(self, s):
        for p, a in enumerate(s.attempts):
            name = "ABCD"[p]
            if not self.is_second_of_equals(s, p, a):
                for label, t in self.steps_of(s, p, a):
                    yield f"{name} {label}", t
        for i, request in enumerate(s.requests):
            yield from self.answers(s._replace(requests=put(s.requests, i)), request)
        for k, entry in enumerate(s.entries):
            if not entry:
                continue
            if self.lease_may_end(s, k, entry):
                over = self.number(replace(self.table[entry], lease_until=0))
                yield "the lease is over", s._replace(entries=put(s.entries, k, over))
            if s.persons:
                yield from self.looks(s, k, entry)
        for i, look in enumerate(s.looks):
            yield f"command {look}", self.command(s._replace(looks=put(s.looks, i)), look)

    def is_second_of_equals(self, s, p, a):
        """Of equal attempts the first begins first: their order does not matter."""
        if p == 0 or self.ways[p] != self.ways[p - 1]:
            return False
        is_same = self.intended[p] == self.intended[p - 1]
        return is_same and a.at == s.attempts[p - 1].at == "new"

    def lease_may_end(self, s, k, entry):
        is_open = self.table[entry].state in ("sending", "uncertain")
        matters = s.persons or s.looks or is_open
        if not matters or not self.table[entry].lease_until:
            return False
        keys_in_flight = [request.key for request in s.requests]
        return not (self.fence and k in keys_in_flight)

    def to(self, s, p, a, after=None, **changes):
        """Change the entry, and an attempt, which keeps only what may matter from here on."""
        a = a._replace(**changes)
        if a.at == "dead":
            a = Attempt("dead")
        elif a.at == "end":
            answer = a.answer if a.answer in ("400", "409") else ""
            a = Attempt("end", is_lost=a.is_lost, made=a.made, answer=answer)
        elif a.at == "rest":
            a = a._replace(entry=0)
        entries = s.entries if after is None else put(s.entries, self.key[p], after)
        return s._replace(entries=entries, attempts=put(s.attempts, p, a))

    def sort(self, s, p, a, entry):
        """Have an attempt decide by its entry; a look-up is a step of its own."""
        a = a._replace(entry=entry, at="sort")
        seen = self.seen(entry)
        is_open = seen.state == "uncertain" and not seen.lease_left
        if "find" in self.ways[p] and is_open and not a.is_over:
            return self.to(s, p, a, entry)
        return self.to(s, p, self.memo(self.sorted, p, a, ()), entry)

    def steps_of(self, s, p, a):
        entry = s.entries[self.key[p]]
        if a.at == "new" and "create" in self.ways[p]:
            is_open = entry > 0 and self.table[entry].state in ("sending", "uncertain")
            may_resend = self.memo(self.loaded, p, entry)
            yield "begins", self.to(s, p, a, at="plan", may_resend=may_resend, allowance=is_open)
        elif a.at in ("new", "plan", "rest"):
            entry = entry or self.number(self.intended[p])
            yield f"reads {self.seen(entry).state}", self.sort(s, p, a, entry)
        elif a.at == "sort":
            digest = self.intended[p].digest
            hits = tuple(job.id for job in s.jobs if job.digest == digest)
            yield f"looks up {hits}", self.to(s, p, self.memo(self.sorted, p, a, hits))
        elif a.at == "take":
            yield f"takes {a.made}", self.take(s, p, a)
        elif a.at == "claim":
            yield self.claim(s, p, a)
        elif a.at == "claimed":
            yield self.send(s, p, a)
        elif a.at == "flight":
            yield from self.ends(s, p, a)
        yield from self.ends_from_outside(s, p, a)

    def ends_from_outside(self, s, p, a):
        if self.stop and a.at in ("rest", "claim"):
            yield "is told to stop", self.to(s, p, a, at="end")
        if self.stop and a.at == "claimed":
            yield "is told to stop", self.to(s, p, a, at="flight", answer="stop")
        if self.crash and a.at in ("claimed", "flight"):
            yield "is killed", self.to(s, p, a, at="dead")

    def take(self, s, p, a):
        """Record what a look-up has found."""
        k = self.key[p]
        entry = s.entries[k]
        self.name = f"{p}.found"
        others = [self.table[other] for other in put(s.entries, k) if other]
        rivals = [other.key for other in others if other.state in ("sending", "uncertain")]
        seen = self.seen(a.entry)
        lookup = partial(ledger.record_lookup, seen, {"id": a.made}, rivals, self.name)
        after = self.changed(lookup, entry)
        if self.is_taken(s, k, a.made):
            after = entry
        return self.to(s, p, a, after, at="end", made="")

    def claim(self, s, p, a):
        k = self.key[p]
        entry = s.entries[k]
        after, is_mine = self.memo(self.claimed, p, a, entry)
        uses = is_mine and a.allowance and self.seen(entry).state == "uncertain"
        t = s._replace(allowed=put(s.allowed, k, s.allowed[k] + uses))
        if not is_mine:
            return "cannot claim", self.sort(t, p, a, after)
        new = {"entry": after, "tries": a.tries + 1, "allowance": a.allowance and not uses}
        under_way = ", maybe under way" if self.seen(entry).lease_left else ""
        label = f"claims what is {self.seen(entry).state}{under_way}"
        return label, self.to(t, p, a, after, at="claimed", **new)

    def send(self, s, p, a):
        if not self.may_send(s, p, a):
            return "is too late to send", self.to(s, p, a, at="flight", answer="429")
        token = self.table[a.entry].idempotency_key
        request = Request(p, a.tries, self.key[p], self.intended[p].digest, token)
        t = s._replace(requests=(*s.requests, request))
        return "sends", self.to(t, p, a, at="flight", answer="")

    def ends(self, s, p, a):
        """Record the answer to a request, or that it was lost."""
        ends = {a.answer}
        if self.lose and a.answer not in ("429", "stop"):
            ends.add("lost")
        for end in sorted(ends - {""}):
            yield f"records {end}", self.record(s, p, a._replace(answer=end))

    def may_send(self, s, p, a):
        entry = self.table[s.entries[self.key[p]]]
        is_mine = entry.owner == self.table[a.entry].owner
        return not self.fence or (is_mine and entry.lease_until > NOW)

    def is_taken(self, s, k, job):
        others = [self.table[entry] for entry in put(s.entries, k) if entry]
        return any(other.result_id == job for other in others)

    def record(self, s, p, a):
        taken = self.is_taken(s, self.key[p], a.answer)
        after, a = self.memo(self.recorded, p, a, s.entries[self.key[p]], taken)
        return self.sort(s._replace(told=s.told | {a.made} - {""}), p, a, after)

    def answers(self, s, request):
        """Have the service answer a request: a job of its token, or a new one, or a refusal."""
        job = Job(f"J{len(s.jobs) + 1}", *request[2:])
        made = [job.id]
        if request.token:
            known = [other.id for other in s.jobs if other.token == request.token]
            made = known or made
        a = s.attempts[request.p]
        hears = a.at == "flight" and a.tries == request.number
        for answer in (*made, *self.refuse.split()):
            t = s._replace(jobs=(*s.jobs, job)) if answer == job.id else s
            if hears:
                t = self.to(t, request.p, a, answer=answer)
            yield f"{'ABCD'[request.p]}: {answer}", t

    def looks(self, s, k, entry):
        """Have a person read an entry, look in the service, and then command.

        What is refused now, he leaves.
        """
        seen = self.seen(entry)
        s = s._replace(persons=s.persons - 1)
        there = [job for job in s.jobs if job.key == k and job.id not in s.forgotten]
        looks = [Look(k, entry, "made", job.id) for job in there if job.digest == seen.digest]
        if not there or seen.state == "done":
            looks.append(Look(k, entry, "not made", ""))
        looks.append(Look(k, entry, "forget", ""))
        for look in looks:
            t = self.command(s, look)
            if t.entries == s.entries:
                continue
            at_once = look.command == "not made" and seen.lease_until > NOW
            label = f"a person: {look} of what is {seen.state}"
            yield label, t if at_once else s._replace(looks=(*s.looks, look))

    def command(self, s, look):
        k = look.key
        seen = self.seen(look.entry)
        before = self.table[s.entries[k]]
        self.name = f"person {s.persons + len(s.looks)}"
        result = {"id": look.job} if look.job else None
        change = partial(ledger.settle, seen, result, look.command, self.name)
        if look.command == "forget":
            change = partial(ledger.forget, seen, "", self.name)
        after = self.changed(change, s.entries[k])
        if after == s.entries[k] or (look.job and self.is_taken(s, k, look.job)):
            return s
        forgotten = s.forgotten
        if look.command == "forget" and before.result and before.result == seen.result:
            forgotten = forgotten | {before.result_id}
        told = s.told | {look.job} - {""}
        return s._replace(entries=put(s.entries, k, after), told=told, forgotten=forgotten)

    # What must never be.
    def wrong(self, s, t, label):
        for k, after in enumerate(t.entries):
            before = self.table[s.entries[k]]
            is_done = before and before.state == "done" and "'forget'" not in label
            if is_done and self.table[after].result != before.result:
                yield f"DONE overwritten: {before.result_id}"
            made = [job.id for job in t.jobs if job.key == k]
            allowed = 1 + t.allowed[k] + len(t.forgotten.intersection(made))
            if len(t.jobs) > len(s.jobs) and len(made) > max(1, allowed):
                yield "TWICE: a job that nobody has allowed"
        if len(t.requests) > len(s.requests) and self.is_early(s, t.requests[-1]):
            yield "EARLY: two requests at once"
        for p, a in enumerate(t.attempts):
            if a.at == "end":
                said = self.false(t, p, a)
                if said:
                    yield f"FALSE: {said}"

    def is_early(self, s, new):
        """Return whether another request may be on its way, and is not known to be the same."""
        for request in s.requests:
            is_recognised = new.token is not None and new.token == request.token
            if request.key == new.key and not is_recognised:
                return self.fence
        return False

    def false(self, s, p, a):
        """Return what an attempt says if it reads its entry now, and it is not so."""
        k = self.key[p]
        entry = self.table[s.entries[k]]
        said = self.memo(self.said, p, a, s.entries[k])
        jobs = [job for job in s.jobs if job.key in (k, -1)]  # also what a person has forgotten
        if said in MADE:
            made = [(job.id, job.digest) for job in jobs]
            fits = (entry.result_id, self.intended[p].digest) in made
            return "" if fits else f"{said} {entry.result_id}"
        if said not in ("rejected", "not_created") or entry.state == "done":
            return ""
        sending = [request.key for request in s.requests]
        for i, other in enumerate(s.attempts):
            if other.at == "claimed" and self.may_send(s, i, other):
                sending.append(self.key[i])
        there = [job.key for job in jobs if job.id not in s.forgotten]
        is_made = k in there and not (s.allowed[k] and s.forgotten)
        return said if k in sending or is_made else ""

    def lost(self, s):
        """Yield what was known and is no more, where nothing moves any further."""
        entries = [self.table[entry] for entry in s.entries]
        known = {entry.result_id for entry in entries}
        for entry in entries:
            known.update(re.findall(r"J\d+", entry.note or ""))
        for job_id in s.told - known - s.forgotten:
            yield f"LOST: {job_id}"
        for job in s.jobs:
            if job.key < 0 or s.allowed[job.key]:
                continue
            state = entries[job.key].state
            if state in ("free", "done") and job.id not in known | s.forgotten:
                yield f"LOST: {job.id}, whose entry is {state}"

    def check(self, first=False):
        """Return what must not be, each with a shortest way to it, and the number of states.

        ``happened`` then holds all that may happen, without the names of jobs and entries.
        """
        by_hand = (Job("J0", -1, self.intended[0].digest, None),) if self.by_hand else ()
        none = (0,) * (max(self.key) + 1)
        new = (Attempt(),) * len(self.intended)
        start = State(none, new, by_hand, self.persons, none, (), (), frozenset(), frozenset())
        self.came = {start: None}
        self.todo = deque([start])
        self.found = {}
        self.labels = set()
        named = {"uuid4": lambda: SimpleNamespace(hex=self.name)}
        with ExitStack() as stack:
            stack.enter_context(patch.multiple(runner, **named, logger=LOG))
            if not self.patient:
                stack.enter_context(patch.object(ledger.LedgerEntry, "lease_left", 0.0))
            while self.todo and not (first and self.found):
                s = self.todo.popleft()
                if len(self.came) > MAX_STATES:
                    self.note("ENDLESS", s)
                    break
                self.follow(s)
        return self.found, len(self.came)

    @property
    def happened(self):
        return {re.sub(r"J?\d+", "", label) for label in self.labels}

    def follow(self, s):
        """Take each step from a state, and check what it leads to."""
        moves = False
        for label, t in self.steps(s):
            self.labels.add(label)
            if t != s and not re.search("person|command|killed", label):
                moves = True
            if t in self.came:
                continue
            for what in self.wrong(s, t, label):
                self.note(what, s, label)
            self.came[t] = s, label
            self.todo.append(t)
        if not moves:
            for what in self.lost(s):
                self.note(what, s)

    def note(self, what, s, *last):
        """Note what must not be, with the steps that lead to it."""
        steps = [*last]
        while self.came[s]:
            s, label = self.came[s]
            steps.append(label)
        self.found.setdefault(re.sub(r"J\d+", "J", what), steps[::-1])


def only_one(hits):
    """Look a job up: one that is not the only one is not told apart."""
    if len(hits) > 1:
        raise ValueError(hits)
    return hits[0] if hits else None
