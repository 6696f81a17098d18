"""Wall time and CPU of bringing PDFs to a folder, beside a script that fetches one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

from tests.benchmarks.case import BenchmarkError, Extent, Round, Row, Tasks
from tests.benchmarks.clients import connect
from tests.benchmarks.server import AUTHORISATION, Service

_LATENCY_MS = 50
_LOOP = "requests.Session in a loop"
_AT_ONCE = {
    _LOOP: 1,
    "FsmFormPdfsToObjectStorageOperator, 4 at once": 4,
    "FsmFormPdfsToObjectStorageOperator, 16 at once": 16,
}


def tasks(extent: Extent, port: int) -> Tasks:
    return {way: {"port": port, "count": extent.jobs, "way": way} for way in _AT_ONCE}


def measure(port: int, count: int, way: str) -> dict[str, float]:
    """Bring so many PDFs, and give the seconds and those of CPU."""
    base_url = Service(port).url(0, 0, _LATENCY_MS)
    forms = [
        {
            "id": number,
            "lastUpdatedOnDateTime": "2026-01-05T07:30:00.000Z",
            "propertyID": str(number % 50),
            "formPDFURL": f"{base_url}/forms/{number}/pdf",
            "jobDetails": {"jobID": number},
        }
        for number in range(1, count + 1)
    ]
    with TemporaryDirectory(prefix="fsm-bench-") as folder:
        if way != _LOOP:
            logging.disable()
            connect("fsm", base_url)
            _operate([], folder, 1)  # what Airflow loads with the first path and connection is loaded
        wall, cpu = time.perf_counter(), time.process_time()
        if way == _LOOP:
            _loop(forms, folder)
        else:
            _operate(forms, folder, _AT_ONCE[way])
        cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        files = [path for path in Path(folder).rglob("*.pdf") if path.read_bytes().startswith(b"%PDF-")]
    if len(files) != count:
        raise BenchmarkError(f"{len(files)} PDFs instead of {count}")
    return cost


def _loop(forms: list[dict[str, Any]], folder: str) -> None:
    with requests.Session() as session:
        session.headers.update(AUTHORISATION)
        for form in forms:
            response = session.get(form["formPDFURL"], timeout=30)
            response.raise_for_status()
            Path(folder, f"{form['id']}.pdf").write_bytes(response.content)


def _operate(forms: list[dict[str, Any]], folder: str, at_once: int) -> None:
    from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
    from tests.unit.state_store import TaskInstance

    operator = FsmFormPdfsToObjectStorageOperator(
        task_id="pdfs", fsm_conn_id="bench", forms=forms, destination=folder, max_concurrency=at_once
    )
    operator.execute({"ti": TaskInstance()})


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = f"{extent.jobs:,} PDFs of {_LATENCY_MS} ms"
    found = []
    for way, at_once in _AT_ONCE.items():
        limit = extent.jobs * _LATENCY_MS / 1000 / at_once
        over = [one[way]["wall"] / limit for one in rounds]
        found.append(Row(section, f"{way} / (PDFs x latency / at once)", "x", over))
        if way != _LOOP:
            cpu = [one[way]["cpu"] / one[_LOOP]["cpu"] for one in rounds]
            found.append(Row(section, f"{way}, CPU / the loop's", "x", cpu))
    return found
