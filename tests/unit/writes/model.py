"""A model checker of the rules by which a write is sent once: every order of what may happen,
breadth first.

Rows, their changes and guards, what an attempt does next and says at its end are those of the
package. Of the model are the service, transactions, kills, people and time: a step is a transaction
or an event, and a lease runs or is over. ``fence`` is what is assumed of the world: after the lease
of its claim nothing is sent, nor carried out by the service.
"""

import logging
import re
from collections import deque, namedtuple
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from fsm_provider.api import errors
from fsm_provider.state.task import Task
from fsm_provider.writes import ledger, runner
from fsm_provider.writes.outcomes import MADE

LOG = logging.getLogger("nobody reads it")
LOG.disabled = True
TASK = Task("d", "r", "t")
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
    "two keys, find": {"attempts": "x, x1, x1 find"},
    "two keys, both find": {"attempts": "x, x1, x1 find, x find", "crash": False},
}

# at: new, plan, sort, rest, claim, claimed, flight, take, end, dead; allowance: to send what was
# uncertain
Attempt = namedtuple(
    "Attempt",
    "at row may_resend is_lost is_over answer made tries allowance",
    defaults=("new", 0, False, False, False, "", "", 0, False),
)
Request = namedtuple("Request", "p number key digest token")
Job = namedtuple("Job", "id key digest token")
Look = namedtuple("Look", "key row command job")
# rows: numbers of Model.table, 0 is none; allowed: further jobs, as it was uncertain; told: ids
# recorded
State = namedtuple("State", "rows attempts jobs persons allowed requests looks told forgotten")


def put(items, at, *new):
    return (*items[:at], *new, *items[at + 1 :])


def throw(error):
    raise error.with_traceback(None)


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
    fence = True

    def __post_init__(self):
        self.specs = [one.split() for one in self.attempts.split(", ")]
        self.key = [int(what[1:] or 0) for what, *_ in self.specs]
        given = [(what[0], what[1:] or "0") for what, *_ in self.specs]
        self.rows = [
            ledger.planned(TASK, "s", "POST /", content, key, "job") for content, key in given
        ]
        self.table, self.read, self.known, self.name, self.taken = [None], [None], {}, "", ""

    # What the package makes of rows; it depends on the arguments alone.
    def memo(self, make, *arguments):
        if (key := (make.__name__, *arguments)) not in self.known:
            self.known[key] = make(*arguments)
        return self.known[key]

    def number(self, row):
        text = repr(row := replace(row, read_at=0, error=None))
        if text not in self.known:
            self.known[text] = len(self.table)
            self.table.append(row)
            self.read.append(ledger.as_read(replace(row, read_at=NOW)))
        return self.known[text]

    def seen(self, row):
        return self.read[row]

    def changed(self, change, row):
        after = change(seen := self.seen(row))
        return row if after is seen else self.number(after)

    def pending(self, p, a, row):
        one = ledger.WriteAttempt(self.rows[p])
        one.attempts = SimpleNamespace(
            delay_after=lambda error: 0 if a.tries <= self.repeats else throw(error)
        )
        one.row, one.may_resend, one.is_lost, one.is_over = (
            self.seen(row),
            a.may_resend,
            a.is_lost,
            a.is_over,
        )
        one.response, one.is_created = {"id": a.made}, bool(a.made)
        one.error = None if a.answer == "stop" else ERRORS.get(a.answer)
        return one

    def runner(self, p, row=0, hits=()):
        def take(changes):
            self.taken = changes[self.rows[p].id](self.seen(row)).result_id
            return rows

        ways, rows = self.specs[p][1:], {self.rows[p].id: self.seen(row)} if row else {}
        empty = {"rows_of_task": lambda task: {}, "rivals_of": lambda row: []}
        store = SimpleNamespace(load=lambda ids: rows, change=take, is_shared=True, **empty)
        header = "key" if "token" in ways else None
        settings = SimpleNamespace(
            timeout=0, idempotency_header=header, idempotency_hours=20, max_retries=4, web_url=None
        )
        client = SimpleNamespace(settings=settings, count_retry=lambda delay: None)
        hook = SimpleNamespace(client=client, fsm_conn_id="c")
        found = (
            (throw if len(hits) > 1 else lambda write: next(iter(hits), None))
            if "find" in ways
            else None
        )
        return runner.Runner(store, TASK, hook, LOG, find=found, create_uncertain="create" in ways)

    def loaded(self, p, row):
        self.runner(p, row).load([one := ledger.WriteAttempt(self.rows[p])])
        return one.may_resend

    def sorted(self, p, a, hits):
        self.taken, one = "", self.runner(p, a.row, hits)
        one._route(self.pending(p, a, a.row))
        at = (
            "take" if self.taken else "claim" if one._waiting else "rest" if one._resting else "end"
        )
        return a._replace(at=at, made=self.taken or a.made)

    def claimed(self, p, a, row):
        self.name, seen, one = f"{p}.{a.tries}", self.seen(a.row), self.pending(p, a, a.row)
        claim = self.runner(p)._claim_of(one)
        after = self.changed(partial(ledger.claimed, claim, seen, LEASE), row)
        return after, self.table[after].owner == claim.owner

    def recorded(self, p, a, row, is_taken):
        claim, one, by, seen = (
            self.seen(a.row),
            self.pending(p, a, a.row),
            self.runner(p),
            self.seen(row),
        )
        claim = claim if seen.owner == claim.owner else replace(claim, lease_until=0)
        ends = {
            "result": lambda: throw(ERRORS[a.answer]) if a.answer in ERRORS else {"id": a.answer}
        }
        by._take_end(one, claim, SimpleNamespace(**ends))
        after = by._to_record[claim.id](seen)
        if is_taken and after.state == "done" and after is not seen:
            after = ledger.belongs_to_another(after, "", seen)
        a = a._replace(
            may_resend=one.may_resend, is_lost=one.is_lost, made=a.answer if one.is_created else ""
        )
        return row if after is seen else self.number(after), a._replace(
            is_over=one.is_over or a.answer == "stop"
        )

    def said(self, p, a, row):
        return self.pending(p, a, row).outcome

    # Steps: a label, and the state after it.
    def steps(self, s):
        for p, a in enumerate(s.attempts):
            is_same = p and self.specs[p] == self.specs[p - 1]
            if not (
                is_same and a.at == s.attempts[p - 1].at == "new"
            ):  # their order does not matter
                yield from ((f"{'ABCD'[p]} {label}", t) for label, t in self.steps_of(s, p, a))
        for i, request in enumerate(s.requests):
            yield from self.answers(s._replace(requests=put(s.requests, i)), request)
        for k, row in enumerate(s.rows):
            matters = row and (
                s.persons or s.looks or self.table[row].state in ("sending", "uncertain")
            )
            is_flying = self.fence and any(one.key == k for one in s.requests)
            if matters and self.table[row].lease_until and not is_flying:
                over = self.number(replace(self.table[row], lease_until=0))
                yield "the lease is over", s._replace(rows=put(s.rows, k, over))
            if row and s.persons:
                yield from self.looks(s, k, row)
        for i, look in enumerate(s.looks):
            yield f"command {look}", self.command(s._replace(looks=put(s.looks, i)), look)

    def to(self, s, p, a, after=None, **changes):
        """Change the row, and an attempt, which keeps nothing but what may matter from here on."""
        a = a._replace(**changes)
        if a.at in ("end", "dead"):
            kept = {
                "is_lost": a.is_lost,
                "made": a.made,
                "answer": a.answer if a.answer in ("400", "409") else "",
            }
            a = Attempt(a.at, **kept if a.at == "end" else {})
        rows = s.rows if after is None else put(s.rows, self.key[p], after)
        return s._replace(
            rows=rows, attempts=put(s.attempts, p, a._replace(row=0) if a.at == "rest" else a)
        )

    def sort(self, s, p, a, row):
        """Have an attempt decide by its row; a look-up is a step of its own."""
        a, seen = a._replace(row=row, at="sort"), self.seen(row)
        finds = (
            "find" in self.specs[p]
            and not a.is_over
            and seen.state == "uncertain"
            and not seen.lease_left
        )
        return self.to(s, p, a if finds else self.memo(self.sorted, p, a, ()), row)

    def steps_of(self, s, p, a):
        k, digest, row = self.key[p], self.rows[p].digest, s.rows[self.key[p]]
        if a.at == "new" and "create" in self.specs[p]:
            is_open = row > 0 and self.table[row].state in ("sending", "uncertain")
            may_resend = self.memo(self.loaded, p, row)
            yield "begins", self.to(s, p, a, at="plan", may_resend=may_resend, allowance=is_open)
        elif a.at in ("new", "plan", "rest"):
            row = row or self.number(self.rows[p])
            yield f"reads {self.seen(row).state}", self.sort(s, p, a, row)
        elif a.at == "sort":
            hits = tuple(one.id for one in s.jobs if one.digest == digest)
            yield f"looks up {hits}", self.to(s, p, self.memo(self.sorted, p, a, hits))
        elif a.at == "take":
            self.name, others = f"{p}.found", [self.table[one] for one in put(s.rows, k) if one]
            rivals = [one.key for one in others if one.state in ("sending", "uncertain")]
            found = partial(ledger.found, self.seen(a.row), {"id": a.made}, rivals)
            after = self.changed(found, row)
            after = row if self.is_taken(s, k, a.made) else after
            yield f"takes {a.made}", self.to(s, p, a, after, at="end", made="")
        elif a.at == "claim":
            after, is_mine = self.memo(self.claimed, p, a, row)
            uses = is_mine and a.allowance and self.seen(row).state == "uncertain"
            new = {"row": after, "tries": a.tries + 1, "allowance": a.allowance and not uses}
            t = s._replace(allowed=put(s.allowed, k, s.allowed[k] + uses))
            t = (
                self.to(t, p, a, after, at="claimed", **new)
                if is_mine
                else self.sort(s, p, a, after)
            )
            yield "claims" if is_mine else "cannot claim", t
        elif a.at == "claimed" and self.may_send(s, p, a):
            request = Request(p, a.tries, k, digest, self.table[a.row].idempotency_key)
            yield (
                "sends",
                self.to(s._replace(requests=(*s.requests, request)), p, a, at="flight", answer=""),
            )
        elif a.at == "claimed":
            yield "is too late to send", self.to(s, p, a, at="flight", answer="429")
        elif a.at == "flight":
            ends = (
                {a.answer, "lost"} if self.lose and a.answer not in ("429", "stop") else {a.answer}
            )
            yield from (
                (f"records {end}", self.record(s, p, a._replace(answer=end)))
                for end in sorted(ends - {""})
            )
        if self.stop and a.at in ("rest", "claim", "claimed"):
            ends = {"at": "flight", "answer": "stop"} if a.at == "claimed" else {"at": "end"}
            yield "is told to stop", self.to(s, p, a, **ends)
        if self.crash and a.at in ("claimed", "flight"):
            yield "is killed", self.to(s, p, a, at="dead")

    def may_send(self, s, p, a):
        row = self.table[s.rows[self.key[p]]]
        return not self.fence or (row.owner == self.table[a.row].owner and row.lease_until > NOW)

    def is_taken(self, s, k, job):
        return any(one and self.table[one].result_id == job for one in put(s.rows, k))

    def record(self, s, p, a):
        taken = self.is_taken(s, self.key[p], a.answer)
        after, a = self.memo(self.recorded, p, a, s.rows[self.key[p]], taken)
        return self.sort(s._replace(told=s.told | {a.made} - {""}), p, a, after)

    def answers(self, s, request):
        known = [one.id for one in s.jobs if request.token and one.token == request.token]
        job, a = Job(f"J{len(s.jobs) + 1}", *request[2:]), s.attempts[request.p]
        for answer in (*(known or [job.id]), *self.refuse.split()):
            t = s._replace(jobs=(*s.jobs, job)) if answer == job.id else s
            hears = a.at == "flight" and a.tries == request.number
            yield (
                f"{'ABCD'[request.p]}: {answer}",
                self.to(t, request.p, a, answer=answer) if hears else t,
            )

    def looks(self, s, k, row):
        """Have a person read a row, look in the service, and then command: what is refused now, he
        leaves.
        """
        seen, s = self.seen(row), s._replace(persons=s.persons - 1)
        there = [one for one in s.jobs if one.key == k and one.id not in s.forgotten]
        looks = [Look(k, row, "made", one.id) for one in there if one.digest == seen.digest]
        looks += [Look(k, row, "not made", "")] if not there or seen.state == "done" else []
        for look in (*looks, Look(k, row, "forget", "")):
            if (t := self.command(s, look)).rows != s.rows:
                at_once = look.command == "not made" and seen.lease_until > NOW
                yield f"a person: {look}", t if at_once else s._replace(looks=(*s.looks, look))

    def command(self, s, look):
        k, seen, before = look.key, self.seen(look.row), self.table[s.rows[look.key]]
        self.name, result = (
            f"person {s.persons + len(s.looks)}",
            {"id": look.job} if look.job else None,
        )
        forgets = look.command == "forget"
        settled = partial(ledger.settled, seen, result, look.command)
        change = partial(ledger.forgotten, seen, "") if forgets else settled
        after = self.changed(change, s.rows[k])
        if after == s.rows[k] or (look.job and self.is_taken(s, k, look.job)):
            return s
        gone = (
            {before.result_id}
            if forgets and before.result and before.result == seen.result
            else set()
        )
        told, forgotten = s.told | {look.job} - {""}, s.forgotten | gone
        return s._replace(rows=put(s.rows, k, after), told=told, forgotten=forgotten)

    # What must never be.
    def wrong(self, s, t, label):
        for k, after in enumerate(t.rows):
            before, made = self.table[s.rows[k]], [one.id for one in t.jobs if one.key == k]
            is_done = before and before.state == "done" and "'forget'" not in label
            if is_done and self.table[after].result != before.result:
                yield f"DONE overwritten: {before.result_id}"
            if len(t.jobs) > len(s.jobs) and len(made) > 1 + t.allowed[k] + len(
                t.forgotten.intersection(made)
            ):
                yield "TWICE: a job that nobody has allowed"
        ends = [(p, a) for p, a in enumerate(t.attempts) if a.at == "end"]
        yield from (f"FALSE: {said}" for p, a in ends if (said := self.false(t, p, a)))

    def false(self, s, p, a):
        """Return what an attempt says if it reads its row now, and it is not so."""
        k, row = self.key[p], self.table[s.rows[self.key[p]]]
        what = self.memo(self.said, p, a, s.rows[k])
        made = [one for one in s.jobs if one.key in (k, -1) and one.id not in s.forgotten]
        if what in MADE:
            jobs = [
                one for one in s.jobs if one.key in (k, -1)
            ]  # also what a person has forgotten since
            fits = (row.result_id, self.rows[p].digest) in [(one.id, one.digest) for one in jobs]
            return "" if fits else f"{what} {row.result_id}"
        if what not in ("rejected", "not_created") or row.state == "done":
            return ""
        claims = [
            i
            for i, one in enumerate(s.attempts)
            if one.at == "claimed" and self.may_send(s, i, one)
        ]
        is_sent = k in [one.key for one in s.requests] + [self.key[i] for i in claims]
        is_made = k in [one.key for one in made] and not (s.allowed[k] and s.forgotten)
        return what if is_sent or is_made else ""

    def lost(self, s):
        """Yield what was known and is no more, where nothing moves any further."""
        rows = [self.table[one] for one in s.rows]
        known = {one.result_id for one in rows} | set(
            re.findall(r"J\d+", str([one.note for one in rows]))
        )
        yield from (f"LOST: {one}" for one in s.told - known - s.forgotten)
        for job in s.jobs:
            state = rows[job.key].state if job.key >= 0 and not s.allowed[job.key] else ""
            if state in ("free", "done") and job.id not in known | s.forgotten:
                yield f"LOST: {job.id}, whose row is {state}"

    def check(self, first=False):
        """Return what must not be, each with a shortest way to it, and the number of states."""
        by_hand = (Job("J0", -1, self.rows[0].digest, None),) if self.by_hand else ()
        none, new = (0,) * (max(self.key) + 1), (Attempt(),) * len(self.specs)
        start = State(none, new, by_hand, self.persons, none, (), (), frozenset(), frozenset())
        came, todo, found = {start: None}, deque([start]), {}

        def note(what, s, *last):
            steps = [*last]
            while came[s]:
                s, label = came[s]
                steps.append(label)
            found.setdefault(re.sub(r"J\d+", "J", what), steps[::-1])

        named = {"uuid4": lambda: SimpleNamespace(hex=self.name)}
        with patch.multiple(ledger, **named), patch.multiple(runner, **named, logger=LOG):
            while todo and not (first and found):
                s, moves = todo.popleft(), False
                for label, t in self.steps(s):
                    moves = moves or (t != s and not re.search("person|command|killed", label))
                    if t not in came:
                        for what in self.wrong(s, t, label):
                            note(what, s, label)
                        came[t] = s, label
                        todo.append(t)
                for what in () if moves else self.lost(s):
                    note(what, s)
        return found, len(came)
