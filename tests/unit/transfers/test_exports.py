"""Listings exported as files, on a disk and on S3."""

import csv
import io
import json
import random
import sys
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from pyarrow import parquet

from fsm_provider.testing import faults
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
    return FsmFormsToObjectStorageOperator(task_id="t", destination=path, **kwargs).execute(
        context_for(None)
    )


def export_assets(folder, *, format="jsonl", **kwargs):
    path = f"{folder}/asset_fields.{format}"
    operator = FsmAssetDynamicFieldsToObjectStorageOperator(task_id="t", destination=path, **kwargs)
    return operator.execute(context_for(None))


def rows_for(name, content):
    """Read a file back, as whoever has no schema but the file's own would."""
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in content.splitlines()]
    if name.endswith(".csv"):
        rows = csv.DictReader(io.StringIO(content.decode(), newline=""))
        return [{column: text or None for column, text in row.items()} for row in rows]
    return parquet.read_table(io.BytesIO(content)).to_pylist()


def exported(storage):
    return {name: rows_for(name, content) for name, content in contents(storage).items()}


def ids(storage):
    return {name: [int(row["id"]) for row in rows] for name, rows in exported(storage).items()}


@pytest.mark.parametrize("format", FORMATS)
def test_each_form_is_a_row_of_typed_columns(service, connect, storage, format):
    service.seed_forms(25, first_created=START)
    form = service.forms[3]
    connect(service)

    result = export(storage, format=format)

    (rows,) = exported(storage).values()
    assert len(rows) == 25
    assert list(rows[3]) == COLUMNS
    created = datetime(2026, 1, 30, 22, 0, 3, tzinfo=UTC)
    assert rows[3]["createdOnDateTime"] == {"parquet": created}.get(
        format, "2026-01-30T22:00:03.000000Z"
    )
    number = str if format == "csv" else int
    assert rows[3]["id"] == number(form["id"])
    assert rows[3]["jobDetails_jobID"] == number(form["jobDetails"]["jobID"])
    assert rows[3]["propertyID"] == form["propertyID"]
    assert rows[3]["links_job"] == form["links"]["job"]
    assert rows[3]["_extra"] is None
    size = len(contents(storage)[f"forms.{format}"])
    assert result == {"path": f"{storage}/forms.{format}", "rows": 25, "bytes": size}


def test_a_parquet_file_has_the_same_types_whatever_it_holds(service, connect, tmp_path):
    connect(service)
    schemas = []
    for field in ({}, {"jobDetails": None, "links": None, "createdByID": None}, {"formName": 5}):
        if field:
            service.add_form(created=START, **field)
        export(tmp_path, format="parquet")
        content = contents(tmp_path)["forms.parquet"]
        file = parquet.ParquetFile(io.BytesIO(content))
        schemas.append(file.schema_arrow)
        assert file.metadata.num_rows == len(service.forms)

    assert schemas == schemas[:1] * 3
    types = {str(field.type): field.name for field in reversed(schemas[0])}
    assert types == {
        "int64": "id",
        "timestamp[us, tz=UTC]": "createdOnDateTime",
        "string": "createdByType",
    }
    compressed = {file.metadata.row_group(0).column(0).compression}
    assert compressed == {"ZSTD"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_form_of_an_unexpected_shape_is_a_row_too(service, connect, tmp_path, format):
    odd = {
        "createdOnDateTime": "yesterday",
        "createdByUser": {"first": "Ann"},
        "jobDetails": {"jobID": "11", "jobTown": None, "jobPostcode": [1], "jobFloor": 2},
        "links": "none",
        "signature": {"by": "tenant"},
    }
    service.add_form(**odd)
    service.add_form(jobDetails={"jobID": 2**64}, createdOnDateTime="0001-01-01T00:00:00+02:00")
    connect(service)

    export(tmp_path, format=format)

    ((first, second),) = exported(tmp_path).values()
    assert int(first["jobDetails_jobID"]) == 11
    assert json.loads(first["_extra"]) == {
        "createdByUser": {"first": "Ann"},
        "createdOnDateTime": "yesterday",
        "jobDetails_jobFloor": 2,
        "jobDetails_jobPostcode": [1],
        "links": "none",
        "signature": {"by": "tenant"},
    }
    assert json.loads(second["_extra"])["jobDetails_jobID"] == 2**64
    assert [
        first["createdOnDateTime"],
        second["createdOnDateTime"],
        second["jobDetails_jobID"],
    ] == [None] * 3


@pytest.mark.parametrize("quote_formulas", [False, "true"])
def test_text_survives_each_format_and_is_quoted_where_a_spreadsheet_would_take_it_for_a_formula(
    service, connect, tmp_path, quote_formulas
):
    texts = [
        "=1+1",
        "+44 20",
        "-2",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        'A "quoted", line\r\nand \N{SNOWMAN}',
        "'x",
        "",
    ]
    for text in texts:
        service.add_form(created=START, formName=text, jobDetails={"jobID": -2})
    connect(service)

    for format in FORMATS:
        export(tmp_path, format=format, quote_formulas=quote_formulas)

    found = exported(tmp_path)
    quoted = [f"'{text}" for text in texts[:6]] if quote_formulas else texts[:6]
    assert [row["formName"] or "" for row in found["forms.csv"]] == quoted + texts[6:]
    assert {row["jobDetails_jobID"] for row in found["forms.csv"]} == {"-2"}
    assert [row["formName"] for row in found["forms.jsonl"]] == texts
    assert [row["formName"] for row in found["forms.parquet"]] == texts


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_no_number_in_json_is_none_in_an_export(service, connect, tmp_path, format):
    service.add_form(created=START, reading="canary")
    body = faults.Rewrite(
        lambda body: json.loads(json.dumps(body).replace('"canary"', "[1e999, -1e999, 1.5]"))
    )
    service.fail("GET", "/forms", body)
    connect(service)

    export(tmp_path, format=format)

    ((row,),) = exported(tmp_path).values()
    assert json.loads(row["_extra"], parse_constant=pytest.fail) == {"reading": [None, None, 1.5]}


@pytest.mark.parametrize("raw", [None, ["unreadable"]])
def test_the_pdf_url_is_in_no_file(service, connect, tmp_path, raw):
    form = service.add_form(created=START, **({"formPDFURL": ["signed-canary"]} if raw else {}))
    canary = b"signed-canary" if raw else form["formPDFURL"].encode()
    connect(service)

    export(tmp_path)
    assert not any(canary in content for content in contents(tmp_path).values())


@pytest.mark.parametrize("format", FORMATS)
def test_a_second_run_gives_the_same_bytes_whatever_the_order(service, connect, storage, format):
    service.seed_forms(60, first_created=START, interval=timedelta(hours=1))
    connect(service)

    export(storage, format=format)
    before = contents(storage)
    with service._state.changed:
        random.Random(7).shuffle(service._state.forms.records)
    export(storage, format=format)

    assert contents(storage) == before


def test_a_form_on_two_pages_is_written_once_in_its_latest_version(service, connect, tmp_path):
    later = START + timedelta(days=1)
    for order in (1, -1):
        versions = [
            {"lastUpdatedOnDateTime": START.isoformat(), "propertyID": "7", "formName": "old"},
            {"lastUpdatedOnDateTime": later.isoformat(), "propertyID": "8", "formName": "new"},
        ][::order]
        for version in versions:
            service.add_form(id=1, **version)
            service.seed_forms(10, first_created=START)
    connect(service)

    result = export(tmp_path)

    rows = [row for rows in exported(tmp_path).values() for row in rows if row["id"] == 1]
    assert [(row["formName"], row["propertyID"]) for row in rows] == [("new", "8")]
    assert result["rows"] == 41


def test_the_upper_bound_is_checked_here(service, connect, tmp_path):
    service.seed_forms(10, first_created=START, interval=timedelta(hours=1))
    unreadable = service.add_form(createdOnDateTime="soon")
    wanted = [form["id"] for form in service.forms[2:5]]
    connect(service)

    export(tmp_path, created_since=START + timedelta(hours=2), created_before="2026-01-31T03:00:00")

    assert ids(tmp_path) == {"forms.jsonl": [unreadable["id"], *wanted]}
    first, *others = [dict(request.query) for request in service.requests]
    assert first == {"createdOnDateTime[gte]": "2026-01-31T00:00:00.000Z"}
    assert all("cursor" in query for query in others), (
        "what the bound leaves out is counted: one reading"
    )


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_listing_is_an_empty_file_with_its_columns(service, connect, tmp_path, format):
    connect(service)

    assert export(tmp_path, format=format)["rows"] == 0

    content = contents(tmp_path)[f"forms.{format}"]
    assert rows_for(f".{format}", content) == []
    if format == "csv":
        assert content.decode() == ",".join(COLUMNS) + "\r\n"
    if format == "parquet":
        assert parquet.read_schema(io.BytesIO(content)).names == COLUMNS


def test_each_value_of_an_asset_field_has_a_row_in_each_use(service, connect, tmp_path):
    uses = [
        {"scope": "standard", "fieldKey": "make", "fieldDescription": "Make"},
        {
            "scope": "assetType",
            "fieldKey": "k",
            "fieldDescription": "d",
            "assetTypeID": 3,
            "new": 1,
        },
    ]
    service.add_asset_dynamic_field(
        "Make", values=("Baxi", "Vaillant"), used_by=uses, dynamicFieldID=9
    )
    service.add_asset_dynamic_field("Empty", values=(), used_by=(), dynamicFieldID=8)
    service.add_asset_dynamic_field("Odd", used_by=uses[:1], dynamicFieldID=7)
    service._state.asset_dynamic_fields.records[-1]["values"] = "all"
    for name in ("Gas", "Oil", "Oil"):  # one field in several records, of which two are equal
        service.add_asset_dynamic_field("Fuel", values=(name,), used_by=(), dynamicFieldID=10)
        service._state.asset_dynamic_fields.records[-1]["values"][0]["id"] = len(name)
    connect(service)

    for format in FORMATS:
        result = export_assets(tmp_path, format=format)

        assert result["rows"] == 8
        rows = exported(tmp_path)[f"asset_fields.{format}"]
        found = [
            tuple(
                row[column]
                for column in ("dynamicFieldName", "values_name", "usedBy_scope", "_extra")
            )
            for row in rows
        ]
        assert sorted(found[6:]) == [("Fuel", "Gas", None, None), ("Fuel", "Oil", None, None)]
        assert found[:6] == [
            ("Odd", None, "standard", '{"values":"all"}'),
            ("Empty", None, None, None),
            ("Make", "Baxi", "standard", None),
            ("Make", "Baxi", "assetType", '{"usedBy_new":1}'),
            ("Make", "Vaillant", "standard", None),
            ("Make", "Vaillant", "assetType", '{"usedBy_new":1}'),
        ]


def test_templates_are_read_when_the_task_runs(service, connect, tmp_path):
    service.add_form(created=START, property_id=7)
    service.add_form(created=START, property_id=8)
    connect(service)
    operator = FsmFormsToObjectStorageOperator(
        task_id="t",
        destination=f"{tmp_path}/day={{{{ ds }}}}/property={{{{ property }}}}.{{{{ format }}}}",
        property_id="{{ property }}",
        created_since="{{ start }}",
        created_before="{{ end }}",
    )

    operator.render_template_fields(
        {
            "ds": "2026-01-30",
            "format": "csv",
            "property": 8,
            "start": "2026-01-30",
            "end": "2026-01-31",
        }
    )
    operator.execute(context_for(None))

    assert ids(tmp_path) == {"day=2026-01-30/property=8.csv": [service.forms[1]["id"]]}


def test_parquet_without_pyarrow_fails_before_anything_is_listed(
    service, connect, tmp_path, monkeypatch
):
    connect(service)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(AirflowFailException, match=r"install airflow-provider-fsm\[parquet\]"):
        export(tmp_path, format="parquet")

    assert service.requests == []
    export(tmp_path, format="csv")
