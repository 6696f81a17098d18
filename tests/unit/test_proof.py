"""``make prove`` prints the same for a seed, and ends with 1 where a rule is broken."""

import random
from dataclasses import replace

import pytest

from fsm_provider.writes import ledger
from tests.pages import DOCS, block_with
from tests.proof import __main__ as command
from tests.proof import report
from tests.proof.lines import BY_NAME, METHODS
from tests.proof.report import SHARE, proof, report_of_line, result_of
from tests.unit.writes.mutations import CONDITIONS

QUICK = {
    "states": ["two attempts", "told to stop", "find", "impatient", "create"],
    "without": ["claim 2", "claim 5", "settle 2", "settle 4", "record_success 4"],
}
"""Lines that take no time; those of days have tests of their own."""


@pytest.fixture(autouse=True)
def quick_methods(monkeypatch):
    methods = []
    for name, cases in QUICK.items():
        method = replace(BY_NAME[name], cases=lambda chance, cases=cases: cases)
        methods.append(method)
    monkeypatch.setattr(report, "METHODS", methods)


def results_here(lines):
    return {line: result_of(line) for line in lines}


def test_a_seed_prints_the_same_and_another_seed_something_else():
    share = {"states": 3, "without": 3}

    first, is_right = proof(6, share, results_here)
    again, _ = proof(6, share, results_here)
    other, _ = proof(7, share, results_here)

    assert is_right
    assert first == again
    assert first.replace("eed 6", "eed 7") != other
    assert "3 of 5 scenarios, chosen by seed 6" in first
    assert "6 lines, 0 wrong:" in first


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_line_is_named_by_what_repeats_it(method):
    for name in method.cases(random.Random(1)):
        assert command.line_from(f"{method.name} {name}") == (method.name, name)


def test_a_line_is_repeated(monkeypatch, capsys):
    monkeypatch.setattr(command, "results_in_processes", results_here)

    code = command.main(["--line", "without settle 2"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "result is None" in printed
    assert "1. " in printed


def test_a_broken_rule_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(command, "results_in_processes", results_here)
    # Who claims does not look whether somebody else has.
    monkeypatch.setattr(ledger, "claim", CONDITIONS["claim 0"].mutants()[1])

    code = command.main(["--line", "states two attempts"])

    assert code == 1
    assert "TWICE" in capsys.readouterr().out


def test_a_condition_that_nothing_needs_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(command, "results_in_processes", results_here)
    condition = CONDITIONS["settle 2"]
    monkeypatch.setattr(condition, "mutants", lambda: [ledger.settle])

    code = command.main(["--line", "without settle 2"])

    assert code == 1
    assert "NOTHING" in capsys.readouterr().out


def test_what_is_wrong_is_said_with_the_way_there(monkeypatch):
    monkeypatch.setattr(ledger, "claim", CONDITIONS["claim 0"].mutants()[1])

    text, is_right = proof(6, {"without": 0}, results_here)

    assert not is_right
    assert "WRONG: states two attempts" in text
    assert "2. " in text


def test_the_page_shows_a_line_as_it_is_printed():
    shown = block_with("LINE=", "text", DOCS / "proof.md")
    command_line, _, output = shown.partition("\n")
    line = command.line_from(command_line.partition('"')[2].rstrip('"'))

    assert output == "\n".join([*report_of_line(line, result_of(line)), ""])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_page_shows_how_many_lines_there_are(method):
    """The other figures are those of a run."""
    shown = block_with("SEED=1", "text", DOCS / "proof.md")
    total = len(method.cases(random.Random(1)))
    share = f"all {total} {method.noun}"
    if method.name in SHARE and SHARE[method.name] < total:
        share = f"{SHARE[method.name]} of {total} {method.noun}, chosen by seed 1"

    (of_method,) = (text for text in shown.splitlines() if text.startswith(f"  {method.name} "))

    assert share in of_method
    assert of_method.endswith(": none wrong")
