"""Triggers that wait for the form of a job, as each client makes them: all poll once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from airflow.models import Connection
from airflow.providers.http.sensors.http import HttpSensor
from airflow.providers.http.triggers.http import HttpEventTrigger, HttpSensorTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fsm_provider.hooks.fsm import settings_from
from fsm_provider.polling.waits import Deferral
from fsm_provider.triggers.forms import FsmFormTrigger
from tests.benchmarks.clients.loops import AUTHORISATION

INTERVAL = 1.0


def shared(job: int) -> BaseTrigger:
    """Wait on the feed that all share, as a sensor that has just found nothing."""
    now = time.time()
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    connection = Connection.get_connection_from_secrets("bench")
    return FsmFormTrigger(
        fsm_conn_id="bench",
        filters={"job_id": str(job), "created_since": today.isoformat()},
        minimum_forms=1,
        form_names=[],
        query_params=None,
        poll_interval=INTERVAL,
        failure_tolerance=600.0,
        log_interval=3600.0,
        wait=Deferral(settings_from(connection).service, now, now + 86_400.0, None, now, []).as_dict(),
    )


shared_busy = shared


def http_event(job: int) -> BaseTrigger:
    """Wait until a check passes the listing."""
    return HttpEventTrigger(
        response_check_path="tests.benchmarks.checks.has_form",
        http_conn_id="bench",
        endpoint="forms",
        headers=AUTHORISATION,
        data={"jobID": str(job)},
        poll_interval=INTERVAL,
    )


def http_sensor(job: int) -> BaseTrigger:
    """Wait until a URL does not return 404, which is all that a deferred HttpSensor can."""
    return HttpSensorTrigger(
        endpoint=f"forms/{job}", http_conn_id="bench", headers=AUTHORISATION, poke_interval=INTERVAL
    )


def nothing(job: int) -> BaseTrigger:
    """Wait for nothing, and never wake."""
    return _Nothing(job)


def poked(job: int) -> Any:
    """Make the sensor of a task that stays on its worker."""
    return HttpSensor(
        task_id=f"wait_{job}",
        http_conn_id="bench",
        endpoint="forms",
        method="GET",
        headers=AUTHORISATION,
        request_params={"jobID": str(job)},
        response_check=lambda response: bool(response.json()["data"]),
    )


class _Nothing(BaseTrigger):
    def __init__(self, job: int) -> None:
        super().__init__()
        self._job = job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}._Nothing", {"job": self._job}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        await asyncio.Event().wait()
        yield TriggerEvent(None)
