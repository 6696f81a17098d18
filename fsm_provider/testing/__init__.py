"""A fake of the field-service API over a real socket, for tests and demonstrations.

Nothing here imports the provider's own client, so that the two cannot share a mistake.
Needs the extra ``testing`` (FastAPI and uvicorn).
"""

from fsm_provider.testing import faults, openapi
from fsm_provider.testing.delivering import Deliveries, RecordedDelivery
from fsm_provider.testing.engineer import Engineer
from fsm_provider.testing.files import FakeFileHost
from fsm_provider.testing.service import FakeFieldService
from fsm_provider.testing.state import RecordedRequest

__all__ = [
    "Deliveries",
    "Engineer",
    "FakeFieldService",
    "FakeFileHost",
    "RecordedDelivery",
    "RecordedRequest",
    "faults",
    "openapi",
]
