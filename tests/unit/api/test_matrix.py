"""Every fault x request x phase: errors, requests, delays, and stored jobs."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from fsm_provider import api
from fsm_provider.testing import faults
from tests.unit.api.matrix import BOUNDS, CELLS, MATRIX, RETRIES, Phase, PollFailure, Row, as_table

TABLES = Path(__file__).parents[3] / "docs" / "tested.md"
PATHS = {"GET": "/forms", "POST": "/properties/7/jobs"}
CALLS = {"first call": {"call": 1}, "second page": {"call": 2}, "every call": {"every": True}}
PAGES, PAGE = 3, 10


@pytest.mark.parametrize(("method", "phase"), CELLS, ids=[", ".join(cell) for cell in CELLS])
@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.fault)
def test_cell(service, make_client, row: Row, method: str, phase: Phase):
    service.seed_forms(PAGE * PAGES)
    waits: list[float] = []
    forms: list[int] = []
    raised = None
    expected, fault = row.outcome(method, phase), row.play
    scripted = None
    if not isinstance(fault, PollFailure):
        scripted = service.fail(method, PATHS[method], fault, **CALLS[phase])

    with ExitStack() as failure:

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if phase != "every call":
                failure.close()

        timeout = (0.5 if phase == "every call" else 2) if isinstance(fault, faults.Stall) else 10
        client = make_client(service, sleep=wait, timeout=timeout, max_retries=RETRIES)
        listing = client.list_forms()
        if phase == "second page":
            forms += [next(listing).id for _ in range(PAGE)]
        if isinstance(fault, PollFailure):
            failure.enter_context(fault.begin(service))
        try:
            if method == "GET":
                forms += [form.id for form in listing]
            else:
                client.create_job(7, {"customerReference": "PO-1"})
        except api.FsmError as error:
            raised = type(error).__name__

    assert raised == expected.raises
    assert len(waits) == len(expected.waits)
    for number, (waited, allowed) in enumerate(zip(waits, expected.waits, strict=True)):
        if isinstance(allowed, str):
            assert 0 <= waited <= BOUNDS[allowed] * 2**number
        else:
            assert waited == allowed
    responses = {("GET", None): PAGES, ("POST", None): 1}.get(
        (method, raised), int(phase == "second page")
    )
    unanswered = 0 if scripted is None else expected.repeats + (raised is not None)
    assert len(service.requests) == responses + unanswered
    assert scripted is None or scripted.hits > 0
    complete = [form["id"] for form in service.forms] if method == "GET" else []
    assert forms == (complete if raised is None else complete[: PAGE * responses])
    assert len(service.jobs) == (expected.stored if method == "POST" else 0)


def test_the_documented_table_is_this_one():
    assert as_table() in TABLES.read_text()
