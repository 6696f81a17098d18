"""The jobs that a service holds."""

from typing import Any

from fsm_provider.testing import FakeFieldService


def jobs_with_reference(service: FakeFieldService, reference: str) -> list[dict[str, Any]]:
    return [job for job in service.jobs if job["customerReference"] == reference]
