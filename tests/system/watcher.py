"""The watcher of completed forms, as its service sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.system.airflow_api import AirflowApi


def looks(service: FakeFieldService) -> list[RecordedRequest]:
    """The watcher's requests."""
    return [request for request in service.requests_to("GET", "/forms") if not is_of_sensors(request)]


def is_of_sensors(request: RecordedRequest) -> bool:
    return "createdOnDateTime[gte]" in dict(request.query)


def until_swept(service: FakeFieldService, times: int = 3, timeout: float = 120.0) -> None:
    """Wait until the watcher has looked again.

    What was completed before its first look is history to it; the third is past that.
    """
    seen = len(looks(service))
    service.wait_for(lambda: len(looks(service)) >= seen + times, timeout)


@contextmanager
def watching(airflow: AirflowApi, service: FakeFieldService, dag_id: str) -> Iterator[None]:
    """Unpause a DAG, whose watcher then has its first look behind it; paused again, it asks no more."""
    airflow.pause(dag_id, False)
    try:
        until_swept(service)
        yield
    finally:
        airflow.pause(dag_id, True)
