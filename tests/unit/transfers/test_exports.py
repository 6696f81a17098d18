"""Listings exported as files, on a disk and on S3."""

import gc
import io
import json
import random
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from pyarrow import parquet

from fsm_provider.api import FsmInputError, FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form
from fsm_provider.testing import faults
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.conftest import TOKEN, contents
from tests.unit.state_store import context_for
from tests.unit.transfers.exports import (
    COLUMNS,
    FORMATS,
    START,
    export,
    export_assets,
    exported,
    exported_rows,
    ids,
    rows_for,
)


@pytest.mark.parametrize("format", FORMATS)
def test_each_form_is_a_row_of_typed_columns(service, connect, storage, format):
    service.seed_forms(25, first_created=START)
    form = service.forms[3]
    connect(service)

    result = export(storage, format=format)

    rows = exported_rows(storage)
    assert len(rows) == 25
    row = rows[3]
    assert list(row) == COLUMNS
    created = "2026-01-30T22:00:03.000000Z"
    if format == "parquet":
        created = datetime(2026, 1, 30, 22, 0, 3, tzinfo=UTC)
    assert row["createdOnDateTime"] == created
    number = str if format == "csv" else int
    assert row["id"] == number(form["id"])
    assert row["jobDetails_jobID"] == number(form["jobDetails"]["jobID"])
    assert row["propertyID"] == form["propertyID"]
    assert row["links_job"] == form["links"]["job"]
    assert row["_extra"] is None
    size = len(contents(storage)[f"forms.{format}"])
    assert result == {"path": f"{storage}/forms.{format}", "rows": 25, "bytes": size}


def test_a_parquet_file_has_the_same_types_whatever_it_holds(service, connect, tmp_path):
    connect(service)

    def export_file():
        export(tmp_path, format="parquet")
        content = contents(tmp_path)["forms.parquet"]
        file = parquet.ParquetFile(io.BytesIO(content))
        assert file.metadata.num_rows == len(service.forms)
        return file

    empty = export_file()
    service.add_form(created=START, jobDetails=None, links=None, createdByID=None)
    without_details = export_file()
    service.add_form(created=START, formName=5)
    of_other_type = export_file()

    schema = empty.schema_arrow
    assert without_details.schema_arrow == schema
    assert of_other_type.schema_arrow == schema
    first_of_type = {str(field.type): field.name for field in reversed(schema)}
    assert first_of_type == {
        "int64": "id",
        "timestamp[us, tz=UTC]": "createdOnDateTime",
        "string": "createdByType",
    }
    assert of_other_type.metadata.row_group(0).column(0).compression == "ZSTD"


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

    first, second = exported_rows(tmp_path)
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
    assert first["createdOnDateTime"] is None
    assert second["createdOnDateTime"] is None
    assert second["jobDetails_jobID"] is None


FORMULAS = ["=1+1", "+44 20", "-2", "@SUM(A1)", "\t=1", "\r=1"]
QUOTED_FORMULAS = ["'=1+1", "'+44 20", "'-2", "'@SUM(A1)", "'\t=1", "'\r=1"]
OTHER_TEXTS = ['A "quoted", line\r\nand \N{SNOWMAN}', "'x", ""]


@pytest.mark.parametrize(
    ("quote_formulas", "formulas_in_csv"),
    [
        (False, FORMULAS),
        ("true", QUOTED_FORMULAS),
    ],
)
def test_text_survives_each_format_and_is_quoted_where_a_spreadsheet_would_take_it_for_a_formula(
    service, connect, tmp_path, quote_formulas, formulas_in_csv
):
    texts = FORMULAS + OTHER_TEXTS
    for text in texts:
        service.add_form(created=START, formName=text, jobDetails={"jobID": -2})
    connect(service)

    for format in FORMATS:
        export(tmp_path, format=format, quote_formulas=quote_formulas)

    files = exported(tmp_path)
    names_in_csv = [name or "" for name in column(files["forms.csv"], "formName")]
    assert names_in_csv == formulas_in_csv + OTHER_TEXTS
    assert set(column(files["forms.csv"], "jobDetails_jobID")) == {"-2"}
    assert column(files["forms.jsonl"], "formName") == texts
    assert column(files["forms.parquet"], "formName") == texts


def column(rows, name):
    return [row[name] for row in rows]


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_no_number_in_json_is_none_in_an_export(service, connect, tmp_path, format):
    def add_infinities(page):
        text = json.dumps(page).replace('"canary"', "[NaN, 1e400, -1e400, 1.5]")
        return json.loads(text)

    service.add_form(created=START, reading="canary")
    service.fail("GET", "/forms", faults.Rewrite(add_infinities))
    connect(service)

    export(tmp_path, format=format)

    [row] = exported_rows(tmp_path)
    extra = json.loads(row["_extra"], parse_constant=pytest.fail)
    assert extra == {"reading": [None, None, None, 1.5]}


class Raw:
    """The correct response, with a text in it replaced."""

    def __init__(self, text, other):
        self.text = text
        self.other = other

    async def play(self, exchange):
        response = await exchange.handle()
        body = response.body.replace(self.text, self.other)
        await exchange.respond(replace(response, body=body))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("number", "exported"),
    [
        ("1.10", "1.1"),
        ("1e2", "100.0"),
        ("1e400", "null"),
        ("NaN", "null"),
        ("-Infinity", "null"),
        ("1.00000000000000000001", "1.0"),
        ("9" * 30, "9" * 30),
    ],
)
def test_a_number_without_a_column_is_as_the_page_says(
    service, connect, tmp_path, format, number, exported
):
    service.add_form(created=START, reading="canary")
    service.fail("GET", "/forms", Raw(b'"canary"', number.encode()))
    connect(service)

    export(tmp_path, format=format)

    [row] = exported_rows(tmp_path)
    assert row["_extra"] == f'{{"reading":{exported}}}'


@pytest.mark.parametrize("format", FORMATS)
def test_a_record_is_nested_in_up_to_190_levels(service, connect, tmp_path, format):
    levels = b"[" * 190 + b"]" * 190
    more_levels = b"[" * 200 + b"]" * 200
    service.add_form(created=START, reading="canary")
    connect(service, max_retries=0)

    service.fail("GET", "/forms", Raw(b'"canary"', levels))
    export(tmp_path, format=format)
    service.fail("GET", "/forms", Raw(b'"canary"', more_levels))
    with pytest.raises(FsmResponseError, match="is not JSON that can be read: recursion limit"):
        export(tmp_path, format=format)

    [row] = exported_rows(tmp_path)
    assert row["_extra"] == f'{{"reading":{levels.decode()}}}'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "{{ 'utf-8-sig' }}"])
def test_a_csv_file_may_have_the_byte_order_mark_by_which_excel_knows_its_encoding(
    service, connect, tmp_path, encoding
):
    for name in ("Prüfung", "Gas"):
        service.add_form(created=START, formName=name)
    connect(service)

    for format in FORMATS:
        operator = FsmFormsToObjectStorageOperator(
            task_id="t", destination=f"{tmp_path}/forms.{format}", encoding=encoding
        )
        operator.render_template_fields({})
        operator.execute(context_for(None))

    files = contents(tmp_path)
    has_mark = "sig" in encoding
    content = files["forms.csv"]
    assert content.count(b"\xef\xbb\xbf") == content.startswith(b"\xef\xbb\xbf") == has_mark
    [first, second] = rows_for(".csv", content.decode(operator.encoding).encode())
    assert (first["formName"], second["formName"]) == ("Prüfung", "Gas")
    assert files["forms.jsonl"].startswith(b"{")
    assert len(rows_for(".parquet", files["forms.parquet"])) == 2


def test_another_encoding_is_refused():
    with pytest.raises(FsmInputError, match=r"^encoding: 'latin-1' is none of utf-8, utf-8-sig"):
        FsmFormsToObjectStorageOperator(task_id="t", destination="/x.csv", encoding="latin-1")


def test_the_pdf_url_is_in_no_file(service, connect, tmp_path):
    form = service.add_form(created=START)
    connect(service)

    export(tmp_path)

    for content in contents(tmp_path).values():
        assert form["formPDFURL"].encode() not in content


def test_an_unreadable_pdf_url_is_in_no_file(service, connect, tmp_path):
    service.add_form(created=START, formPDFURL=["signed-canary"])
    connect(service)

    export(tmp_path)

    for content in contents(tmp_path).values():
        assert b"signed-canary" not in content


@pytest.mark.parametrize(
    ("export_listing", "path", "kind"),
    [(export, "/forms", Form), (export_assets, "/assetDynamicFieldValues", AssetDynamicField)],
)
def test_no_page_is_held_while_the_next_one_is_read(
    service, connect, tmp_path, export_listing, path, kind
):
    connect(service)
    service.seed_forms(30)
    for _ in range(30):
        service.add_asset_dynamic_field()
    held = []

    def count():
        records = [value for value in gc.get_objects() if type(value) is kind]
        held.append(len(records))

    service.fail("GET", path, faults.Before(count), every=True)

    export_listing(tmp_path)

    assert len(held) == 3
    assert max(held) < held[0] + 5


@pytest.mark.parametrize("export_listing", [export, export_assets])
def test_a_token_that_the_service_repeats_is_in_no_file(service, connect, tmp_path, export_listing):
    connect(service)
    service.add_form(formName=f"for {TOKEN}", unspecified=[TOKEN])
    service.add_asset_dynamic_field(name=f"for {TOKEN}")

    export_listing(tmp_path)

    [content] = contents(tmp_path).values()
    assert TOKEN.encode() not in content
    assert b"for ***" in content


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
    old = {"lastUpdatedOnDateTime": START.isoformat(), "propertyID": "7", "formName": "old"}
    new = {"lastUpdatedOnDateTime": later.isoformat(), "propertyID": "8", "formName": "new"}
    for version in (old, new, new, old):
        service.add_form(id=1, **version)
        service.seed_forms(10, first_created=START)
    connect(service)

    result = export(tmp_path)

    [row] = [row for row in exported_rows(tmp_path) if row["id"] == 1]
    assert row["formName"] == "new"
    assert row["propertyID"] == "8"
    assert result["rows"] == 41


def test_the_upper_bound_is_checked_here(service, connect, tmp_path):
    service.seed_forms(10, first_created=START, interval=timedelta(hours=1))
    unreadable = service.add_form(createdOnDateTime="soon")
    ids_within = [form["id"] for form in service.forms[2:5]]
    connect(service)
    since = START + timedelta(hours=2)

    export(tmp_path, created_since=since, created_before="2026-01-31T03:00:00")

    assert ids(tmp_path) == {"forms.jsonl": [unreadable["id"], *ids_within]}
    first, *others = service.requests
    assert dict(first.query) == {"createdOnDateTime[gte]": "2026-01-31T00:00:00.000Z"}
    for request in others:
        assert "cursor" in dict(request.query), "what the bound leaves out is counted: one reading"


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_listing_is_an_empty_file_with_its_columns(service, connect, tmp_path, format):
    connect(service)

    result = export(tmp_path, format=format)

    assert result["rows"] == 0
    content = contents(tmp_path)[f"forms.{format}"]
    assert rows_for(f".{format}", content) == []
    if format == "csv":
        assert content.decode() == ",".join(COLUMNS) + "\r\n"
    if format == "parquet":
        assert parquet.read_schema(io.BytesIO(content)).names == COLUMNS


def test_each_value_of_an_asset_field_has_a_row_in_each_use(service, connect, tmp_path):
    standard = {"scope": "standard", "fieldKey": "make", "fieldDescription": "Make"}
    of_type = {
        "scope": "assetType",
        "fieldKey": "k",
        "fieldDescription": "d",
        "assetTypeID": 3,
        "new": 1,
    }
    service.add_asset_dynamic_field(
        "Make",
        values=("Baxi", "Vaillant"),
        used_by=[standard, of_type],
        dynamicFieldID=9,
    )
    service.add_asset_dynamic_field("Empty", values=(), used_by=(), dynamicFieldID=8)
    service.add_asset_dynamic_field("Odd", used_by=[standard], dynamicFieldID=7)
    service._state.asset_dynamic_fields.records[-1]["values"] = "all"
    for name in ("Gas", "Oil", "Oil"):  # one field in several records, of which two are equal
        service.add_asset_dynamic_field("Fuel", values=(name,), used_by=(), dynamicFieldID=10)
        service._state.asset_dynamic_fields.records[-1]["values"][0]["id"] = len(name)
    connect(service)
    shown_columns = itemgetter("dynamicFieldName", "values_name", "usedBy_scope", "_extra")

    for format in FORMATS:
        result = export_assets(tmp_path, format=format)

        assert result["rows"] == 8
        rows = list(map(shown_columns, exported(tmp_path)[f"asset_fields.{format}"]))
        assert sorted(rows[6:]) == [("Fuel", "Gas", None, None), ("Fuel", "Oil", None, None)]
        assert rows[:6] == [
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

    context = {
        "ds": "2026-01-30",
        "format": "csv",
        "property": 8,
        "start": "2026-01-30",
        "end": "2026-01-31",
    }

    operator.render_template_fields(context)
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
