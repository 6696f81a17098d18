"""Histories made by hand: those that an order explains, and those that none does."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.distributed import recorded
from tests.history import Event, order_of, unexplained
from tests.system.kills import Killer, Report, Run
from tests.unit.state_store import context_for
from tests.unit.writes.operators import write_jobs


def service(what, job_id, begin, end):
    return Event("PO-1", "service", what, job_id, begin, end)


def task(what, job_id, begin, end):
    return Event("PO-1", "task", what, job_id, begin, end)


def entry(what, job_id, at):
    return Event("PO-1", "ledger", what, job_id, at, at)


def person(what, job_id, at):
    return Event("PO-1", "person", what, job_id, at, at)


MADE = service("made", 7, 1, 2)
KILLED = service("made", 7, 1, float("inf"))
"""By a request whose sender was killed: it may have taken effect at any time."""

GOOD = {
    "created": [MADE, task("created", 7, 0, 3), entry("done", 7, 4)],
    "created, and again by a cleared task": [
        MADE,
        task("created", 7, 0, 3),
        task("existing", 7, 4, 5),
        entry("done", 7, 6),
    ],
    "refused, then created": [
        service("refused", None, 1, 2),
        task("rejected", None, 0, 3),
        service("made", 8, 5, 6),
        task("created", 8, 4, 7),
    ],
    "two tasks at once": [MADE, task("created", 7, 0, 3), task("existing", 7, 0, 3)],
    "nothing was there before, while it was made": [
        MADE,
        task("not_created", None, 0, 3),
        task("created", 7, 0, 3),
    ],
    "killed, uncertain, settled": [
        KILLED,
        task("uncertain", None, 3, 4),
        entry("uncertain", None, 5),
        person("done", 7, 6),
        task("existing", 7, 7, 8),
    ],
    "killed before it was sent": [task("uncertain", None, 3, 4), person("free", None, 5)],
    "settled as not made, then made": [
        task("uncertain", None, 1, 2),
        person("free", None, 3),
        service("made", 9, 5, 6),
        task("created", 9, 4, 7),
    ],
    "it took effect late": [
        KILLED,
        task("not_created", None, 3, 4),
        task("uncertain", None, 5, 6),
    ],
}
BAD = {
    "made twice": [MADE, service("made", 8, 3, 4), task("created", 8, 0, 5)],
    "made twice, and nobody says so": [MADE, KILLED],
    "said before it was made": [task("created", 7, 0, 0.5), MADE],
    "said, and there is none": [task("created", 7, 0, 3)],
    "another job": [MADE, task("created", 8, 0, 3)],
    "no job": [MADE, task("created", None, 0, 3)],
    "made, and said to be missing": [MADE, task("not_created", None, 3, 4)],
    "made, and said to be rejected": [MADE, task("rejected", None, 3, 4)],
    "known, then uncertain": [MADE, task("created", 7, 0, 3), task("uncertain", None, 4, 5)],
    "known, then free": [MADE, task("created", 7, 0, 3), entry("free", None, 4)],
    "settled as not made, though it was": [MADE, person("free", None, 3)],
    "settled as made, before it was": [person("done", 7, 0), MADE],
    "a state that is none": [MADE, entry("sending", None, 4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_an_order_explains_it(name):
    order = order_of(GOOD[name])

    assert sorted(map(str, order)) == sorted(map(str, GOOD[name]))
    assert unexplained(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_no_order_explains_it(name):
    assert order_of(BAD[name]) is None
    (text,) = unexplained(BAD[name])
    assert "PO-1" in text


def test_each_key_has_an_order_of_its_own():
    other = Event("PO-2", "service", "made", 8, 1, 2)

    assert unexplained([*GOOD["created"], other]) == []
    assert len(unexplained([*BAD["another job"], other])) == 1


@pytest.mark.parametrize("store", ["in a database"], indirect=True)
def test_what_a_cluster_records_is_explained(store, service, connect):
    """Of a fake of the service and a ledger; a job that was made twice is not."""
    connect(service)
    killer = Killer()
    service.fail("POST", "/properties/*/jobs", killer, every=True)
    begin = datetime.now(UTC).isoformat()
    outcomes = write_jobs(property_id=7001).execute(context_for(store))
    ends = {"start_date": begin, "end_date": datetime.now(UTC).isoformat()}
    stage = SimpleNamespace(
        killer=killer,
        airflow=SimpleNamespace(env={}),
        task=lambda run: ends,
    )
    runs = [Run(7, "dag", "run", ["PO-1"], {})]
    reports = [Report("success", 1, "", outcomes, {})]

    of_service = list(recorded.of_service(stage, runs))
    of_tasks = list(recorded.of_tasks(stage, runs, reports))
    of_ledger = list(recorded.of_ledger(stage, runs, "fsm_default"))

    history = [*of_service, *of_tasks, *of_ledger]
    print(*history, sep="\n")
    assert {event.who for event in history} == {"service", "task", "ledger"}
    assert unexplained(history) == []
    assert unexplained([*history, *of_service]) != []
