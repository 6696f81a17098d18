"""What exports a listing as files: ours, a dlt pipeline, and the script that one would write.

Importing a function's needs is apart from calling it, since memory is measured from there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.benchmarks.server import TOKEN

Export = Callable[[str, Path, str], Any]
"""Given the base URL, a folder and the format."""


def ours() -> Export:
    """Make the operator's export."""
    import airflow.sdk  # noqa: F401

    from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
    from tests.benchmarks.connections import provide

    def export(base_url: str, folder: Path, format: str) -> None:
        provide({"conn_type": "fsm", "host": base_url, "password": TOKEN})
        task = SimpleNamespace(dag_id="bench", run_id="bench", task_id="export", map_index=-1)
        operator = FsmFormsToObjectStorageOperator(
            task_id="export", fsm_conn_id="bench", destination=f"{folder}/forms.{format}"
        )
        operator.execute({"ti": task})

    return export


def dlt() -> Export:
    """Make dlt's export: its REST source into its filesystem destination."""
    import dlt
    from dlt.destinations import filesystem
    from dlt.sources.rest_api import rest_api_source

    def export(base_url: str, folder: Path, format: str) -> None:
        paginator = {"type": "cursor", "cursor_path": "pagination.nextCursor", "cursor_param": "cursor"}
        source = rest_api_source(
            {
                "client": {
                    "base_url": base_url,
                    "auth": {"type": "bearer", "token": TOKEN},
                    "paginator": paginator,
                },
                "resources": [{"name": "forms", "endpoint": {"path": "forms", "data_selector": "data"}}],
            }
        )
        pipeline = dlt.pipeline(
            "bench",
            destination=filesystem(bucket_url=folder.as_uri()),
            dataset_name="bench",
            pipelines_dir=str(folder / "_dlt_pipelines"),
        )
        pipeline.run(source, loader_file_format=format)

    return export


def pandas() -> Export:
    """Make the script's export: every form in a list, the list in a frame, the frame in a file."""
    import pandas

    from tests.benchmarks.clients import without_simplejson

    without_simplejson()
    from tests.benchmarks.clients.session import forms

    def export(base_url: str, folder: Path, format: str) -> None:
        frame = pandas.json_normalize(list(forms(base_url)), sep="_")
        for column in ("createdOnDateTime", "lastUpdatedOnDateTime"):
            frame[column] = pandas.to_datetime(frame[column])
        file = folder / f"forms.{format}"
        if format == "jsonl":
            frame.to_json(file, orient="records", lines=True, date_format="iso")
        elif format == "csv":
            frame.to_csv(file, index=False)
        else:
            frame.to_parquet(file, compression="zstd")

    return export
