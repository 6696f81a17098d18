"""CPU and memory of exporting a listing as files, against dlt and a script with pandas."""

from __future__ import annotations

import csv
import gc
import gzip
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.case import (
    BenchmarkError,
    Extent,
    Goal,
    Round,
    Row,
    Tasks,
    ratios,
    values_of,
)
from tests.benchmarks.clients import connect, hide_simplejson, list_by_session
from tests.benchmarks.memory import resident_mib, set_peak_back
from tests.benchmarks.pages import FORMS_PER_PAGE, sum_of_form_ids
from tests.benchmarks.server import TOKEN, Service

Export = Callable[[str, str, str], Any]
"""Given the base URL, a folder or bucket, and the format."""

_FORMATS = ("jsonl", "csv", "parquet")
_OURS = "FsmFormsToObjectStorageOperator"
_DLT = "dlt, rest_api to filesystem"
_SCRIPT = "requests and pandas"
_S3 = f"{_OURS}, to S3"
_GOALS = {_DLT: Goal(at_most=0.4), _SCRIPT: Goal(at_most=1.0)}
_MEMORY = Goal(at_most=150)
_MOST_OF_OTHERS = 1000
"""Pages, up to which all are measured in both orders: more would take half an hour a round."""


def tasks(extent: Extent, port: int) -> Tasks:
    wanted: Tasks = {}
    for pages in extent.exports:
        for shuffled in (False, True):
            for exporter in _exporters(pages, shuffled):
                for format in _FORMATS:
                    run = (exporter, pages, format, shuffled)
                    wanted[_key(*run)] = {"port": port, "run": run}
    return wanted


def _exporters(pages: int, shuffled: bool) -> list[str]:
    if pages <= _MOST_OF_OTHERS:
        return [_OURS, _DLT, _SCRIPT]
    if shuffled:
        return []
    return [_OURS, _SCRIPT, _S3]


def _key(exporter: str, pages: int, format: str, shuffled: bool) -> str:
    order = " in no order" if shuffled else ""
    return f"{exporter}, {pages} pages{order} to {format}"


def measure(port: int, run: tuple[str, int, str, bool]) -> dict[str, float]:
    """Export so many pages: give CPU seconds, and the peak of memory above the start in MiB.

    Imports are measured in neither.
    """
    exporter, pages, format, shuffled = run
    export = _EXPORTERS[exporter]()
    kind = "shuffled" if shuffled else "pages"
    base_url = Service(port).url(0, pages, kind=kind)
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
        cpu_before = sum(os.times()[:4])
        memory_before = set_peak_back()
        export(base_url, destination, format)
        cpu = sum(os.times()[:4]) - cpu_before
        memory = resident_mib("VmHWM") - memory_before
        if exporter == _S3:
            local = Path(folder, f"forms.{format}").as_uri()
            ObjectStoragePath(f"{destination}/forms.{format}").copy(local)
        _check(Path(folder), format, pages)
    return {"cpu": cpu, "memory": memory}


@contextmanager
def _destination(exporter: str, folder: str) -> Iterator[str]:
    if exporter != _S3:
        yield folder
        return
    spawn = get_context("spawn")  # an S3 whose memory is its own
    our_end, its_end = spawn.Pipe()
    server = spawn.Process(target=_serve_s3, args=(its_end,))
    server.start()
    environment, bucket = our_end.recv()
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
    names: list[str] = []
    form_ids: list[int] = []
    for file in folder.rglob(f"*.{format}*"):
        is_of_dlt = "_dlt" in str(file.relative_to(folder))
        if not is_of_dlt:
            names.append(file.name)
            form_ids += _identifiers(file, format)
    are_all = len(form_ids) == pages * FORMS_PER_PAGE
    if not are_all or sum(form_ids) != sum_of_form_ids(0, pages):
        raise BenchmarkError(f"{len(form_ids)} forms were exported to {names}")


def _identifiers(file: Path, format: str) -> list[int]:
    from pyarrow import parquet

    if format == "parquet":
        return parquet.read_table(file, columns=["id"])["id"].to_pylist()
    if file.suffix == ".gz":
        with gzip.open(file, "rt") as lines:
            return _identifiers_in_text(lines, format)
    with file.open() as lines:
        return _identifiers_in_text(lines, format)


def _identifiers_in_text(lines: Iterable[str], format: str) -> list[int]:
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
            task_id="export",
            fsm_conn_id="bench",
            destination=f"{folder}/forms.{format}",
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
        client = {
            "base_url": base_url,
            "auth": {"type": "bearer", "token": TOKEN},
            "paginator": paginator,
        }
        forms = {
            "name": "forms",
            "endpoint": {"path": "forms", "data_selector": "data"},
        }
        source = rest_api_source({"client": client, "resources": [forms]})
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


_EXPORTERS = {
    _OURS: _ours,
    _S3: _ours,
    _DLT: _dlt,
    _SCRIPT: _pandas,
}


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    table: list[Row] = []
    for pages in extent.exports:
        for format in _FORMATS:
            for shuffled in (False, True):
                table += _rows_of_cpu(rounds, pages, format, shuffled)
    return table + _rows_of_memory(rounds, extent.exports[-1])


def _rows_of_cpu(rounds: Sequence[Round], pages: int, format: str, shuffled: bool) -> list[Row]:
    order = " in no order" if shuffled else ""
    section = f"{pages * FORMS_PER_PAGE:,} forms{order} to {format}"
    table: list[Row] = []
    for other, goal in _GOALS.items():
        if other not in _exporters(pages, shuffled):
            continue
        ours = values_of(rounds, _key(_OURS, pages, format, shuffled), "cpu")
        theirs = values_of(rounds, _key(other, pages, format, shuffled), "cpu")
        label = f"{_OURS} / {other}, CPU"
        table.append(Row(section, label, "x", ratios(ours, theirs), goal))
    return table


def _rows_of_memory(rounds: Sequence[Round], pages: int) -> list[Row]:
    section = f"{pages * FORMS_PER_PAGE:,} forms, peak memory above start"
    table: list[Row] = []
    for exporter in _exporters(pages, False):
        goal = None if exporter == _SCRIPT else _MEMORY
        for format in _FORMATS:
            memory = values_of(rounds, _key(exporter, pages, format, False), "memory")
            table.append(Row(section, f"{exporter}, {format}", "MiB", memory, goal))
    return table
