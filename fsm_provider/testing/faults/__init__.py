"""Faults between a client and the service, scripted with ``FakeFieldService.fail``.

Each fault documents what it does to the request and the response. In any case, what the service has
handled is stored, and every request that was read is in ``service.requests``::

    from fsm_provider.testing import FakeFieldService, faults

    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
    with pytest.raises(FsmUncertainWriteError):
        hook.create_job(1, {})
    assert len(service.jobs) == 1
"""

from fsm_provider.testing.exchange import Exchange, Response
from fsm_provider.testing.faults.base import Fault
from fsm_provider.testing.faults.connections import (
    Delay,
    MalformedResponse,
    Reset,
    Stall,
    Trickle,
    Truncated,
)
from fsm_provider.testing.faults.listings import (
    ABSENT,
    RepeatedCursor,
    RepeatedRecords,
    pagination,
    record,
)
from fsm_provider.testing.faults.responses import (
    Body,
    CorrectResponse,
    Gzip,
    Huge,
    Redirect,
    Rewrite,
    Status,
    WrongContentType,
)
from fsm_provider.testing.faults.timing import Before

__all__ = [
    "ABSENT",
    "Before",
    "Body",
    "CorrectResponse",
    "Delay",
    "Exchange",
    "Fault",
    "Gzip",
    "Huge",
    "MalformedResponse",
    "Redirect",
    "RepeatedCursor",
    "RepeatedRecords",
    "Reset",
    "Response",
    "Rewrite",
    "Stall",
    "Status",
    "Trickle",
    "Truncated",
    "WrongContentType",
    "pagination",
    "record",
]
