"""A fake of the field-service API over a real socket, for tests and demonstrations.

The fake imports nothing of the provider's own client, so that the two cannot share a mistake; only
:mod:`~fsm_provider.testing.form_runs` does, as it runs the watcher itself.
Needs the extra ``testing`` (FastAPI and uvicorn), imported on first use: pytest loads
:mod:`fsm_provider.testing.pytest_plugin` wherever this package is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_provider.testing import faults, openapi
    from fsm_provider.testing.delivering import Deliveries, RecordedDelivery
    from fsm_provider.testing.engineer import Engineer
    from fsm_provider.testing.files import FakeFileHost
    from fsm_provider.testing.form_pdf import FormPdf
    from fsm_provider.testing.service import FakeFieldService
    from fsm_provider.testing.state import RecordedRequest

__all__ = [
    "Deliveries",
    "Engineer",
    "FakeFieldService",
    "FakeFileHost",
    "FormPdf",
    "RecordedDelivery",
    "RecordedRequest",
    "faults",
    "openapi",
]

_HOMES = {  # the module of each name that is no module itself
    "Deliveries": "delivering",
    "Engineer": "engineer",
    "FakeFieldService": "service",
    "FakeFileHost": "files",
    "FormPdf": "form_pdf",
    "RecordedDelivery": "delivering",
    "RecordedRequest": "state",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return import_module(f"{__name__}.{name}")
    module = import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(module, name)
