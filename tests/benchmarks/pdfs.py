"""Wall time and CPU of bringing PDFs to a folder, beside a script that fetches one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import requests

from tests.benchmarks import connections
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.results import Round, Row
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import TOKEN, Service

_LATENCY_MS = 50
_AT_ONCE = (4, 16)


def measure(port: int, count: int, at_once: int) -> dict[str, float]:
    """Bring so many PDFs; at once 0: by a loop of a session. Give the seconds and those of CPU."""
    base_url = Service(port).listing(0, 0, _LATENCY_MS)
    forms = [
        {"id": number, "lastUpdatedOnDateTime": "2026-01-05T07:30:00.000Z", "propertyID": str(number % 50)}
        | {"formPDFURL": f"{base_url}/forms/{number}/pdf", "jobDetails": {"jobID": number}}
        for number in range(1, count + 1)
    ]
    with TemporaryDirectory(prefix="fsm-bench-") as folder:
        bring = _operator(forms, base_url, folder, at_once) if at_once else _loop(forms, folder)
        wall, cpu = time.perf_counter(), time.process_time()
        bring()
        cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        files = [path for path in Path(folder).rglob("*.pdf") if path.read_bytes().startswith(b"%PDF-")]
    if len(files) != count:
        raise BenchmarkError(f"{len(files)} PDFs instead of {count}")
    return cost


def _loop(forms: list[dict[str, Any]], folder: str) -> Any:
    def bring() -> None:
        with requests.Session() as session:
            session.headers["Authorization"] = f"Bearer {TOKEN}"
            for form in forms:
                response = session.get(form["formPDFURL"], timeout=30)
                response.raise_for_status()
                Path(folder, f"{form['id']}.pdf").write_bytes(response.content)

    return bring


def _operator(forms: list[dict[str, Any]], base_url: str, folder: str, at_once: int) -> Any:
    from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator

    logging.disable()
    connections.provide({"conn_type": "fsm", "host": base_url, "password": TOKEN})
    task = SimpleNamespace(dag_id="dag", run_id="run", task_id="pdfs", map_index=-1)

    def bring(forms: list[dict[str, Any]]) -> None:
        FsmFormPdfsToObjectStorageOperator(
            task_id="pdfs", forms=forms, destination=folder, max_concurrency=at_once
        ).execute({"ti": task})

    bring([])  # what Airflow loads with the first path and connection is loaded
    return lambda: bring(forms)


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(str(at_once), "pdfs:measure", {"port": port, "count": extent.jobs, "at_once": at_once})
        for at_once in (0, *_AT_ONCE)
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    what = f"{extent.jobs:,} PDFs of {_LATENCY_MS} ms"
    rows = [Row(what, "requests.Session in a loop, wall", "s", [one["0"]["wall"] for one in rounds])]
    for at_once in _AT_ONCE:
        label = f"FsmFormPdfsToObjectStorageOperator, {at_once} at once"
        measured = [one[str(at_once)] for one in rounds]
        limit = extent.jobs * _LATENCY_MS / 1000 / at_once
        rows += [
            Row(what, f"{label}, wall", "s", [one["wall"] for one in measured]),
            Row(
                what, f"{label} / (PDFs x latency / at once)", "x", [one["wall"] / limit for one in measured]
            ),
            Row(
                what,
                f"{label}, CPU / the loop's",
                "x",
                [one[str(at_once)]["cpu"] / one["0"]["cpu"] for one in rounds],
            ),
        ]
    return rows


CASE = Case(_tasks, _rows)
