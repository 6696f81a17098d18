"""Every fault x request x phase: errors, requests, delays, and stored jobs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsm_provider import api
from fsm_provider.testing import faults
from tests.unit.api.fault_matrix import (
    BOUNDS,
    CELLS,
    MATRIX,
    RETRIES,
    Outcome,
    Phase,
    PollFailure,
    Row,
    as_table,
)

TABLES = Path(__file__).parents[3] / "docs" / "measured.md"
PATHS = {"GET": "/forms", "POST": "/properties/7/jobs"}
CALLS = {"first call": {"call": 1}, "second page": {"call": 2}, "every call": {"every": True}}
PAGES = 3
PAGE_SIZE = 10


@dataclass
class Observed:
    """What a call of the client has come to."""

    raised: str | None = None
    forms: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


@pytest.mark.parametrize(("method", "phase"), CELLS, ids=[", ".join(cell) for cell in CELLS])
@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.fault)
def test_cell(service, make_client, row: Row, method: str, phase: Phase):
    service.seed_forms(PAGE_SIZE * PAGES)
    expected = row.outcome(method, phase)
    scripted = None
    if not isinstance(row.play, PollFailure):
        scripted = service.fail(method, PATHS[method], row.play, **CALLS[phase])

    observed = call_client(service, make_client, row, method, phase)

    assert observed.raised == expected.raises
    assert_waits_are(observed.waits, expected)

    is_complete = observed.raised is None
    responses = 0
    if phase == "second page":
        responses = 1
    if is_complete:
        responses = PAGES if method == "GET" else 1
    failed_requests = 0
    if scripted is not None:
        assert scripted.hits > 0
        failed_requests = expected.repeats
        if not is_complete:
            failed_requests += 1
    assert len(service.requests) == responses + failed_requests

    if method == "POST":
        assert observed.forms == []
        assert len(service.jobs) == expected.stored
        return
    all_forms = [form["id"] for form in service.forms]
    if is_complete:
        assert observed.forms == all_forms
    else:
        assert observed.forms == all_forms[: PAGE_SIZE * responses]
    assert service.jobs == []


def call_client(service, make_client, row: Row, method: str, phase: Phase) -> Observed:
    """List the forms or create a job while the fault of a row lasts."""
    observed = Observed()
    with ExitStack() as failure:

        def wait(seconds: float) -> None:
            observed.waits.append(seconds)
            if phase != "every call":
                failure.close()

        timeout = timeout_for(row, phase)
        client = make_client(service, sleep=wait, timeout=timeout, max_retries=RETRIES)
        listing = client.list_forms()
        if phase == "second page":
            for _ in range(PAGE_SIZE):
                observed.forms.append(next(listing).id)
        if isinstance(row.play, PollFailure):
            failure.enter_context(row.play.begin(service))
        try:
            if method == "GET":
                observed.forms += [form.id for form in listing]
            else:
                client.create_job(7, {"customerReference": "PO-1"})
        except api.FsmError as error:
            observed.raised = type(error).__name__
    return observed


def timeout_for(row: Row, phase: Phase) -> float:
    if not isinstance(row.play, faults.Stall):
        return 10
    if phase == "every call":
        return 0.5
    return 2


def assert_waits_are(waits: list[float], expected: Outcome) -> None:
    assert len(waits) == len(expected.waits)
    for number, (waited, allowed) in enumerate(zip(waits, expected.waits, strict=True)):
        if isinstance(allowed, str):
            assert 0 <= waited <= BOUNDS[allowed] * 2**number
        else:
            assert waited == allowed


def test_the_documented_table_is_this_one():
    assert as_table() in TABLES.read_text()
