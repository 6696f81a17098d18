"""Exports of listings, and what their files hold."""

import csv
import io
import json
from datetime import UTC, datetime

from pyarrow import parquet

from fsm_provider.transfers.assets import FsmAssetDynamicFieldsToObjectStorageOperator
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.conftest import contents
from tests.unit.state_store import context_for

START = datetime(2026, 1, 30, 22, tzinfo=UTC)
COLUMNS = [
    "id",
    "createdOnDateTime",
    "lastUpdatedOnDateTime",
    "createdByType",
    "createdByID",
    "createdByUser",
    "propertyID",
    "jobDetails_jobID",
    "jobDetails_jobDescription",
    "jobDetails_jobAddressLine1",
    "jobDetails_jobAddressLine2",
    "jobDetails_jobAddressLine3",
    "jobDetails_jobTown",
    "jobDetails_jobProvince",
    "jobDetails_jobPostcode",
    "formName",
    "links_property",
    "links_job",
    "_extra",
]
FORMATS = ["jsonl", "csv", "parquet"]


def export(folder, *, format="jsonl", **kwargs):
    path = f"{folder}/forms.{format}"
    operator = FsmFormsToObjectStorageOperator(task_id="t", destination=path, **kwargs)
    return operator.execute(context_for(None))


def export_assets(folder, *, format="jsonl", **kwargs):
    path = f"{folder}/asset_fields.{format}"
    operator = FsmAssetDynamicFieldsToObjectStorageOperator(task_id="t", destination=path, **kwargs)
    return operator.execute(context_for(None))


def rows_for(name, content):
    """Read a file back, as whoever has no schema but the file's own would."""
    if name.endswith(".jsonl"):
        return list(map(json.loads, content.splitlines()))
    if name.endswith(".csv"):
        return csv_rows(content.decode())
    return parquet.read_table(io.BytesIO(content)).to_pylist()


def csv_rows(text):
    """Return the rows of a CSV file; an empty cell is None."""
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for row in rows:
        for column, cell in row.items():
            row[column] = cell or None
    return rows


def exported(storage):
    """Return the rows of each file in a storage."""
    return {name: rows_for(name, content) for name, content in contents(storage).items()}


def exported_rows(storage):
    """Return the rows of the one file in a storage."""
    [rows] = exported(storage).values()
    return rows


def ids(storage):
    """Return the identifiers in each file of a storage."""
    by_file = {}
    for name, rows in exported(storage).items():
        by_file[name] = [int(row["id"]) for row in rows]
    return by_file
