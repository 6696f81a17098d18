"""The watcher of completed forms, as its service sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.system.airflow_api import PATIENCE, AirflowApi


def polls(service: FakeFieldService) -> list[RecordedRequest]:
    """The watcher's requests, where no deferred sensors share a poll."""
    requests = service.requests_to("GET", "/forms")
    others = {"createdOnDateTime[gte]", "source"}
    return [request for request in requests if others.isdisjoint(dict(request.query))]


def until_polled(service: FakeFieldService, times: int = 3) -> None:
    """Wait until the watcher has polled again.

    Forms completed before its first poll are history to it; the third poll is past that.
    """
    seen = len(polls(service))
    service.wait_for(lambda: len(polls(service)) >= seen + times, PATIENCE)


@contextmanager
def watching(airflow: AirflowApi, service: FakeFieldService, dag_id: str) -> Iterator[None]:
    """Unpause a DAG, wait until its watcher has polled, and pause it again, which ends the polling."""
    airflow.pause(dag_id, False)
    try:
        until_polled(service)
        yield
    finally:
        airflow.pause(dag_id, True)
