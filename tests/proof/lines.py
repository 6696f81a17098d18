"""The lines of a proof: what each explores, and what it says of it.

What a line needs of Airflow is imported as it runs: the processes that run lines have an Airflow of
their own.
"""

import logging
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WIDTH = 64
"""Characters of what broke."""
DELIVERY_DAYS = 6
KINDS = {
    "TWICE": "two jobs",
    "EARLY": "two requests at once",
    "DONE": "a result overwritten",
    "LOST": "a job that no entry knows",
    "ENDLESS": "no end",
}
"""What the model checker finds, in words."""


@dataclass(frozen=True)
class Result:
    """What a line has found.

    :param cells: those of its row.
    :param details: what is printed if the line is asked for by itself, or is wrong.
    :param counts: what the lines of a method sum up.
    """

    cells: list[str]
    is_right: bool
    details: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method of proof.

    :param name: how its lines begin.
    :param title: what it explores.
    :param wrong: what a line would say if the promise did not hold.
    :param cases: the names of all its lines, of which some may be chosen.
    :param run: gives the result of a line by its name.
    :param noun: what its cases are.
    """

    name: str
    title: str
    wrong: str
    columns: list[str]
    cases: Callable[[random.Random], list[str]]
    run: Callable[[str], Result]
    noun: str
    has_an_airflow: bool = False


# --- writes ---


def scenarios(chance: random.Random) -> list[str]:
    from tests.unit.writes.model import SCENARIOS

    return list(SCENARIOS)


def states_of(name: str) -> Result:
    from tests.unit.writes.model import SCENARIOS, Model

    model = Model(**SCENARIOS[name])
    wrong, states = model.check()
    details = [f"attempts, each a content, a key and ways out of uncertain: {model.attempts}"]
    worst_first = sorted(wrong, key=severity)
    for what in worst_first:
        details += [what, *numbered(wrong[what])]
    said = "nothing"
    if wrong:
        said = in_words(worst_first[0])
    return Result([f"{states:,}", said], not wrong, details, {"states": states})


def conditions(chance: random.Random) -> list[str]:
    from tests.unit.writes.mutations import SCENARIO_OF

    return [name for name, scenario in SCENARIO_OF.items() if scenario]


def without_condition(name: str) -> Result:
    from tests.unit.writes.mutations import CONDITIONS, SCENARIO_OF, broken_without

    condition = CONDITIONS[name]
    broken = broken_without(name)
    text = textwrap.shorten(condition.text, 56, placeholder=" ...")
    cells = [f"ledger.py:{condition.line}", text]
    if broken is None:
        return Result([*cells, SCENARIO_OF[name], "NOTHING"], False)
    return Result(
        [*cells, SCENARIO_OF[name], in_words(broken.what)],
        True,
        [
            f"fsm_provider/writes/ledger.py:{condition.line}: {condition.text}",
            *steps_of(broken),
        ],
    )


def other_rules(chance: random.Random) -> list[str]:
    from tests.unit.writes.mutations import OTHER_RULES

    return list(OTHER_RULES)


def without_rule(name: str) -> Result:
    from tests.unit.writes.mutations import OTHER_RULES, broken_by

    broken = broken_by(*OTHER_RULES[name])
    if broken is None:
        return Result(["NOTHING"], False)
    return Result([in_words(broken.what)], True, steps_of(broken))


def severity(what: str) -> tuple[int, str]:
    kinds = [*KINDS, "FALSE"]
    return kinds.index(re.split("[ :]", what)[0]), what


def in_words(what: str) -> str:
    """Say what the model checker has found."""
    kind, _, text = what.partition(": ")
    if kind == "FALSE":
        return f"says {text!r}, which is false"
    if kind == "NEVER":
        text = re.sub(r"Look\(.*command='(.*?)'.*?\)", r"\1", text)
        return f"never {text!r}"
    return KINDS[kind.partition(" ")[0]]


def steps_of(broken: Any) -> list[str]:
    """Say what broke, and how: the shortest way to it, or what does not happen any more."""
    if broken.what.startswith("NEVER"):
        return [f"never: {label}" for label in broken.steps]
    return [broken.what, *numbered(broken.steps)]


def numbered(steps: list[str]) -> list[str]:
    return [f"{number}. {step}" for number, step in enumerate(steps, 1)]


# --- days of forms ---


def form_days(chance: random.Random) -> list[str]:
    """Give a day of each kind."""
    from tests.unit.polling.simulation import MODES

    return [f"{mode} {chance.randrange(10_000)}" for mode in dict.fromkeys(MODES)]


def form_day(name: str) -> Result:
    import pytest

    from tests.unit.polling.broken import day

    mode, seed = name.split()
    logging.disable()
    with pytest.MonkeyPatch.context() as patch:
        wrong, counts = day(int(seed), patch, mode)
    logging.disable(logging.NOTSET)
    cells = [f"{counts['expected']:,}", f"{counts['waits']:,}", said_of(wrong)]
    numbers = {"forms": counts["expected"], "sensors": counts["waits"]}
    details = [*wrong, *said_of_counts(counts)]
    return Result(cells, not wrong, details, numbers)


def broken_form_days(chance: random.Random) -> list[str]:
    from tests.unit.polling.broken import BROKEN

    return list(BROKEN)


def broken_form_day(name: str) -> Result:
    from tests.unit.polling.broken import wrong_without

    logging.disable()
    wrong = wrong_without(name)
    logging.disable(logging.NOTSET)
    return Result([said_of(wrong, "NOTHING")], bool(wrong), wrong)


# --- days of deliveries ---


def delivery_days(chance: random.Random) -> list[str]:
    return [str(chance.randrange(10_000)) for _ in range(DELIVERY_DAYS)]


def delivery_day(name: str) -> Result:
    from tests.unit.plugins.simulation import drawn_day

    wrong, counts = drawn_day(int(name))
    sums = {name: counts[name] for name in ("requests", "failures", "events")}
    cells = [*map(str, sums.values()), said_of(wrong)]
    details = [*wrong, *said_of_counts(counts)]
    return Result(cells, not wrong, details, sums)


def broken_delivery_days(chance: random.Random) -> list[str]:
    from tests.unit.plugins.simulation import BROKEN

    return list(BROKEN)


def broken_delivery_day(name: str) -> Result:
    import pytest

    from tests.unit.plugins.simulation import BROKEN, drawn_day

    with pytest.MonkeyPatch.context() as patch:
        BROKEN[name](patch)
        wrong, _ = drawn_day(1)
    return Result([said_of(wrong, "NOTHING")], bool(wrong), wrong)


def said_of(wrong: list[str], nothing: str = "nothing") -> str:
    """Say how much is wrong, and what first."""
    if not wrong:
        return nothing
    first = re.sub(r"^seed \d+ \S+: ", "", wrong[0])
    return textwrap.shorten(f"{len(wrong)}, as {first}", WIDTH, placeholder=" ...")


def said_of_counts(counts: Counter[str]) -> list[str]:
    return [f"{name}: {counts[name]:,}" for name in sorted(counts)]


METHODS = [
    Method(
        "states",
        "Writes: every order of what may happen, on the ledger's own rules",
        "two jobs, two requests at once, a false outcome, a job that no entry knows",
        ["states", "wrong"],
        scenarios,
        states_of,
        "scenarios",
    ),
    Method(
        "without",
        "Writes: a condition of fsm_provider/writes/ledger.py taken out",
        "NOTHING breaks",
        ["where", "condition", "scenario", "what breaks"],
        conditions,
        without_condition,
        "conditions that are needed",
    ),
    Method(
        "rule",
        "Writes: another rule broken",
        "NOTHING breaks",
        ["what breaks"],
        other_rules,
        without_rule,
        "rules",
    ),
    Method(
        "forms",
        "Forms: days of a service, sensors and watchers; triggerers are killed",
        "a form is lost, comes again or is history; a sensor is late",
        ["forms", "sensors", "wrong"],
        form_days,
        form_day,
        "kinds of days",
    ),
    Method(
        "watcher",
        "Forms: a rule of the watcher broken",
        "NOTHING breaks",
        ["what breaks"],
        broken_form_days,
        broken_form_day,
        "rules",
    ),
    Method(
        "deliveries",
        "Deliveries: two workers, one database that fails",
        "what was accepted is not one event",
        ["requests", "failures", "events", "wrong"],
        delivery_days,
        delivery_day,
        "days that the seed draws",
        has_an_airflow=True,
    ),
    Method(
        "receiver",
        "Deliveries: a rule of the receiver broken",
        "NOTHING breaks",
        ["what breaks"],
        broken_delivery_days,
        broken_delivery_day,
        "rules",
        has_an_airflow=True,
    ),
]
BY_NAME = {method.name: method for method in METHODS}
