"""The watcher of completed forms, as its service sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.system.airflow_api import PATIENCE, AirflowApi


def polls(service: FakeFieldService) -> list[RecordedRequest]:
    """The watcher's requests, where no deferred sensors share a poll."""
    requests: list[RecordedRequest] = []
    for request in service.requests_to("GET", "/forms"):
        query = dict(request.query)
        is_of_others = "createdOnDateTime[gte]" in query or "source" in query
        if not is_of_others:
            requests.append(request)
    return requests


def until_polled(service: FakeFieldService, times: int = 3) -> None:
    """Wait until the watcher has polled again.

    Forms completed before its first poll are history to it; the third poll is past that.
    """
    wanted = len(polls(service)) + times

    def has_polled() -> bool:
        return len(polls(service)) >= wanted

    service.wait_for(has_polled, PATIENCE)


@contextmanager
def watching(airflow: AirflowApi, service: FakeFieldService, dag_id: str) -> Iterator[None]:
    """Unpause a DAG and wait until its watcher has polled; pause it at the end of the block.

    Paused, its watcher polls no more.
    """
    airflow.pause(dag_id, False)
    try:
        until_polled(service)
        yield
    finally:
        airflow.pause(dag_id, True)
