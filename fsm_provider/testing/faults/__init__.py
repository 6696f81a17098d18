"""What can go wrong between a client and the service, played where ``FakeFieldService.fail`` says.

Each fault says what it does to the request and to the answer; whatever it is, what the service
has handled is stored, and every request that was read is among ``service.requests``::

    from fsm_provider.testing import FakeFieldService, faults

    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
    with pytest.raises(FsmUncertainWriteError):
        hook.create_job(1, {})
    assert len(service.jobs) == 1
"""

from fsm_provider.testing.exchange import Answer, Exchange
from fsm_provider.testing.faults.answers import (
    Body,
    Gzip,
    Huge,
    Redirect,
    Rewrite,
    RightAnswer,
    Status,
    WrongContentType,
)
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
from fsm_provider.testing.faults.timing import Before

__all__ = [
    "ABSENT",
    "Answer",
    "Before",
    "Body",
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
    "Rewrite",
    "RightAnswer",
    "Stall",
    "Status",
    "Trickle",
    "Truncated",
    "WrongContentType",
    "pagination",
    "record",
]
