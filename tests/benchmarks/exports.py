"""CPU and memory of exporting a listing as files, against dlt and a script of requests and pandas."""

from __future__ import annotations

import csv
import gc
import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.case import BenchmarkError, Extent, Goal, Round, Row, Tasks
from tests.benchmarks.clients import connect, hide_simplejson, list_by_session
from tests.benchmarks.memory import resident_mib, set_peak_back
from tests.benchmarks.pages import FORMS_PER_PAGE, sum_of_form_ids
from tests.benchmarks.server import TOKEN, Service

Export = Callable[[str, str, str], Any]
"""Given the base URL, a folder or bucket, and the format."""

_FORMATS = ("jsonl", "csv", "parquet")
_OURS, _DLT, _SCRIPT = (
    "FsmFormsToObjectStorageOperator",
    "dlt, rest_api to filesystem",
    "requests and pandas",
)
_S3 = f"{_OURS}, to S3"
_GOALS = {_DLT: Goal(at_most=0.4), _SCRIPT: Goal(at_most=1.0)}
_MEMORY = Goal(at_most=150)
_MOST_OF_OTHERS = 1000
"""Pages, up to which all are measured in both orders: with more, a round would take half an hour.
"""


def tasks(extent: Extent, port: int) -> Tasks:
    runs = [
        (exporter, pages, format, shuffled)
        for pages in extent.exports
        for shuffled in (False, True)
        for exporter in _exporters(pages, shuffled)
        for format in _FORMATS
    ]
    return {_key(*run): {"port": port, "run": run} for run in runs}


def _exporters(pages: int, shuffled: bool) -> list[str]:
    if pages <= _MOST_OF_OTHERS:
        return [_OURS, _DLT, _SCRIPT]
    return [] if shuffled else [_OURS, _SCRIPT, _S3]


def _key(exporter: str, pages: int, format: str, shuffled: bool) -> str:
    return f"{exporter}, {pages} pages{' in no order' if shuffled else ''} to {format}"


def measure(port: int, run: tuple[str, int, str, bool]) -> dict[str, float]:
    """Export so many pages: CPU seconds, and the peak of memory above the start in MiB, imports
    apart.
    """
    exporter, pages, format, shuffled = run
    export, service = _EXPORTERS[exporter](), Service(port)
    base_url = service.url(0, pages, kind="shuffled" if shuffled else "pages")
    with (
        TemporaryDirectory(prefix="fsm-bench-") as folder,
        _destination(exporter, folder) as destination,
    ):
        if exporter == _S3:
            from airflow.sdk import ObjectStoragePath

            ObjectStoragePath(f"{destination}/loads-what-s3-needs").write_text("")
        if format == "parquet":
            import_module("pyarrow.parquet")
            import_module("pandas")  # pyarrow.array does, where it is installed
        gc.collect()
        before, start = sum(os.times()[:4]), set_peak_back()
        export(base_url, destination, format)
        cpu, peak = sum(os.times()[:4]) - before, resident_mib("VmHWM") - start
        if exporter == _S3:
            ObjectStoragePath(f"{destination}/forms.{format}").copy(
                Path(folder, f"forms.{format}").as_uri()
            )
        _check(Path(folder), format, pages)
    return {"cpu": cpu, "memory": peak}


@contextmanager
def _destination(exporter: str, folder: str) -> Iterator[str]:
    if exporter != _S3:
        yield folder
        return
    spawn = get_context("spawn")  # an S3 whose memory is its own
    ours, its = spawn.Pipe()
    server = spawn.Process(target=_serve_s3, args=(its,))
    server.start()
    environment, bucket = ours.recv()
    os.environ.update(environment)
    try:
        yield f"s3://{bucket}"
    finally:
        server.terminate()
        server.join()


def _serve_s3(connection: Any) -> None:
    from tests.s3 import BUCKET, running_s3  # in the measured process it would cost memory

    with running_s3() as environment:
        connection.send((environment, BUCKET))
        signal.pause()


def _check(folder: Path, format: str, pages: int) -> None:
    files = [
        file for file in folder.rglob(f"*.{format}*") if "_dlt" not in str(file.relative_to(folder))
    ]
    found = [identifier for file in files for identifier in _identifiers(file, format)]
    if (len(found), sum(found)) != (pages * FORMS_PER_PAGE, sum_of_form_ids(0, pages)):
        raise BenchmarkError(f"{len(found)} forms were exported to {[file.name for file in files]}")


def _identifiers(file: Path, format: str) -> list[int]:
    from pyarrow import parquet

    if format == "parquet":
        return parquet.read_table(file, columns=["id"])["id"].to_pylist()
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        if format == "jsonl":
            return [json.loads(line)["id"] for line in lines]
        return [int(row["id"]) for row in csv.DictReader(lines)]


def _ours() -> Export:
    import airflow.sdk  # noqa: F401

    from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
    from tests.unit.state_store import TaskInstance

    def export(base_url: str, folder: str, format: str) -> None:
        connect("fsm", base_url)
        operator = FsmFormsToObjectStorageOperator(
            task_id="export", fsm_conn_id="bench", destination=f"{folder}/forms.{format}"
        )
        operator.execute({"ti": TaskInstance()})

    return export


def _dlt() -> Export:
    import dlt
    from dlt.destinations import filesystem
    from dlt.sources.rest_api import rest_api_source

    def export(base_url: str, folder: str, format: str) -> None:
        paginator = {
            "type": "cursor",
            "cursor_path": "pagination.nextCursor",
            "cursor_param": "cursor",
        }
        authorisation = {"type": "bearer", "token": TOKEN}
        source = rest_api_source(
            {
                "client": {"base_url": base_url, "auth": authorisation, "paginator": paginator},
                "resources": [
                    {"name": "forms", "endpoint": {"path": "forms", "data_selector": "data"}}
                ],
            }
        )
        pipeline = dlt.pipeline(
            "bench",
            destination=filesystem(bucket_url=Path(folder).as_uri()),
            dataset_name="bench",
            pipelines_dir=f"{folder}/_dlt_pipelines",
        )
        pipeline.run(source, loader_file_format=format)

    return export


def _pandas() -> Export:
    """Make the script's export: every form in a list, the list in a frame, the frame in a file."""
    hide_simplejson()
    import pandas
    import requests  # noqa: F401

    def export(base_url: str, folder: str, format: str) -> None:
        frame = pandas.json_normalize(list(list_by_session(base_url)), sep="_")
        for column in ("createdOnDateTime", "lastUpdatedOnDateTime"):
            frame[column] = pandas.to_datetime(frame[column])
        file = f"{folder}/forms.{format}"
        if format == "jsonl":
            frame.to_json(file, orient="records", lines=True, date_format="iso")
        elif format == "csv":
            frame.to_csv(file, index=False)
        else:
            frame.to_parquet(file, compression="zstd")

    return export


_EXPORTERS = {_OURS: _ours, _S3: _ours, _DLT: _dlt, _SCRIPT: _pandas}


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    most = extent.exports[-1]
    return [
        *(
            row
            for pages in extent.exports
            for format in _FORMATS
            for shuffled in (False, True)
            for row in _rows_of(rounds, pages, format, shuffled)
        ),
        *(
            Row(
                f"{most * FORMS_PER_PAGE:,} forms, peak memory above start",
                f"{exporter}, {format}",
                "MiB",
                [one[_key(exporter, most, format, False)]["memory"] for one in rounds],
                None if exporter == _SCRIPT else _MEMORY,
            )
            for exporter in _exporters(most, False)
            for format in _FORMATS
        ),
    ]


def _rows_of(rounds: Sequence[Round], pages: int, format: str, shuffled: bool) -> list[Row]:
    section = f"{pages * FORMS_PER_PAGE:,} forms{' in no order' if shuffled else ''} to {format}"

    def cpu(exporter: str) -> list[float]:
        return [one[_key(exporter, pages, format, shuffled)]["cpu"] for one in rounds]

    return [
        Row(
            section,
            f"{_OURS} / {other}, CPU",
            "x",
            [ours / theirs for ours, theirs in zip(cpu(_OURS), cpu(other), strict=True)],
            goal,
        )
        for other, goal in _GOALS.items()
        if other in _exporters(pages, shuffled)
    ]
