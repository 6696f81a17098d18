"""Exports of windows side by side, as one dataset and loaded into DuckDB and PostgreSQL."""

import json
import re
from datetime import UTC, date, datetime, timedelta

import duckdb
import psycopg2
import pytest

from tests.distributed.backends import missing, postgresql
from tests.pages import ROOT
from tests.unit.transfers.exports import COLUMNS, export

DAY = datetime(2026, 11, 22, tzinfo=UTC)
LOOK_BACK = timedelta(days=7)
ODD = {
    "formName": 'A "quoted", line\r\nand another; \\N \N{SNOWMAN}\U0001f690',
    "createdByUser": None,
    "createdByType": "",
    "jobDetails": {"jobID": "11", "jobTown": "Zürich", "jobPostcode": [1], "jobFloor": None},
    "answers": {"gas tight?": ["ja", None, {"reading": 1.5, "unit": "mbar \U0001f525"}]},
}
EXTRA = {"answers": ODD["answers"], "jobDetails_jobFloor": None, "jobDetails_jobPostcode": [1]}
NO_POSTGRESQL = missing("initdb")


def sql_for(warehouse):
    """Return what the page shows for a warehouse."""
    sql = (ROOT / "tests" / "recipes" / f"forms_in_{warehouse.lower()}.sql").read_text()
    assert sql.startswith(f"-- {warehouse}\n")
    return sql


class Dataset:
    """Windows below a folder, one for each day."""

    def __init__(self, folder):
        self.folder = folder

    def window(self, day):
        return self.folder / f"window_start={day.date()}"

    def export(self, day, *, format="parquet", **options):
        """Export a day's window; return the path of its file."""
        export(self.window(day), format=format, updated_since=day - LOOK_BACK, **options)
        return self.window(day) / f"forms.{format}"

    def latest_names(self):
        """Return identifiers and names in the view of the page, as whoever opens it now."""
        view = sql_for("DuckDB").replace("/data/forms", str(self.folder))
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(view)
            rows = connection.execute('SELECT "id", "formName" FROM forms ORDER BY id')
            return rows.fetchall()


@pytest.fixture
def dataset(service, connect, tmp_path):
    connect(service, max_retries=0)
    return Dataset(tmp_path / "forms")


def test_an_older_window_that_is_exported_again_hides_no_newer_version(service, dataset):
    form = service.add_form(updated=DAY)["id"]
    silent = service.add_form(updated=DAY)["id"]
    untimed = service.add_form(updated=DAY, lastUpdatedOnDateTime="soon")["id"]
    timed_once = service.add_form(updated=DAY, lastUpdatedOnDateTime=DAY.isoformat())["id"]
    next_day = DAY + timedelta(days=1)
    later_day = DAY + timedelta(days=9)
    dataset.export(DAY)
    service.update_form(form, updated=next_day, formName="second")
    service.update_form(silent, updated=DAY, formName="same time")
    service.update_form(untimed, updated=next_day, formName="no time", lastUpdatedOnDateTime=None)
    service.update_form(
        timed_once, updated=next_day, formName="no time", lastUpdatedOnDateTime=None
    )
    dataset.export(next_day)
    expected = [
        (form, "second"),
        (silent, "same time"),
        (untimed, "no time"),
        (timed_once, "Gas Safety Record"),
    ]
    assert dataset.latest_names() == expected

    # What the service had before, restored there: the window holds old versions.
    service.update_form(form, updated=DAY, formName="first")
    service.update_form(silent, updated=DAY, formName="before")
    service.update_form(untimed, updated=DAY, formName="before", lastUpdatedOnDateTime=None)
    service.update_form(timed_once, updated=DAY, formName="Gas Safety Record")
    dataset.export(DAY)
    assert dataset.latest_names() == expected

    service.update_form(form, updated=later_day, formName="third")
    dataset.export(DAY)
    assert dataset.latest_names()[0] == (form, "third"), "a window has no end"


# [START howto_copy_window]
def load_window(connection, file, window_start):
    with connection, connection.cursor() as cursor:  # one transaction
        cursor.execute(
            "CREATE TEMP TABLE loading ON COMMIT DROP AS SELECT * FROM form_versions LIMIT 0"
        )
        cursor.execute("ALTER TABLE loading DROP window_start")
        cursor.copy_expert("COPY loading FROM STDIN (FORMAT csv, HEADER MATCH)", file)
        cursor.execute("DELETE FROM form_versions WHERE window_start = %s", [window_start])
        cursor.execute("INSERT INTO form_versions SELECT %s, * FROM loading", [window_start])


# [END howto_copy_window]


@pytest.fixture(scope="module")
def server():
    with postgresql() as url:
        yield f"postgresql://{url}"


@pytest.fixture
def warehouse(server):
    """A connection to an empty schema with the table and the view of the page."""
    connection = psycopg2.connect(server)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.execute("DROP SCHEMA IF EXISTS w CASCADE")
        cursor.execute("CREATE SCHEMA w")
        cursor.execute("SET search_path = w")
        cursor.execute(sql_for("PostgreSQL"))
    yield connection
    connection.close()


def query(warehouse, statement):
    with warehouse, warehouse.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_the_table_of_postgresql_has_the_columns_of_the_export():
    create_table = r"CREATE TABLE form_versions \((.*?)\n\);"
    table = re.search(create_table, sql_for("PostgreSQL"), re.DOTALL)[1]

    columns = [line.split()[0].strip('"') for line in table.strip().splitlines()]
    assert columns == ["window_start", *COLUMNS]


@pytest.mark.skipif(bool(NO_POSTGRESQL), reason=NO_POSTGRESQL)
def test_windows_are_copied_into_postgresql(service, dataset, warehouse):
    def load(day):
        with dataset.export(day, format="csv").open("rb") as file:
            load_window(warehouse, file, day.date())

    changed = service.add_form(updated=DAY)["id"]
    odd = service.add_form(updated=DAY, **ODD)["id"]
    next_day = DAY + timedelta(days=1)

    load(DAY)
    service.update_form(changed, updated=next_day, formName="new")
    load(next_day)
    load(next_day)
    load(DAY + timedelta(days=60))

    latest = query(warehouse, 'SELECT id, "formName", window_start FROM forms ORDER BY id')
    assert latest == [
        (changed, "new", date(2026, 11, 23)),
        (odd, ODD["formName"], date(2026, 11, 23)),
    ]
    columns = (
        '"lastUpdatedOnDateTime", "createdByUser", "createdByType", "jobDetails_jobID", _extra'
    )
    [(updated, user, kind, job, extra)] = query(
        warehouse, f"SELECT {columns} FROM forms WHERE id = {odd}"
    )
    assert updated == DAY
    assert user is None
    assert kind is None
    assert job == 11
    assert json.loads(extra) == EXTRA
    count_by_window = "SELECT window_start, count(*) FROM form_versions GROUP BY 1 ORDER BY 1"
    assert query(warehouse, count_by_window) == [
        (date(2026, 11, 22), 2),
        (date(2026, 11, 23), 2),
    ]


@pytest.mark.skipif(bool(NO_POSTGRESQL), reason=NO_POSTGRESQL)
def test_a_load_that_fails_leaves_the_rows_of_the_one_before(service, dataset, warehouse):
    form = service.add_form(updated=DAY)["id"]
    file = dataset.export(DAY, format="csv")
    with file.open("rb") as rows:
        load_window(warehouse, rows, DAY.date())

    text = file.read_text()
    with_half_a_line = text + "half a li"
    with_another_column = text.replace("formName", "name", 1)
    for bad_text in (with_half_a_line, with_another_column):
        file.write_text(bad_text)
        with file.open("rb") as rows, pytest.raises(psycopg2.Error):
            load_window(warehouse, rows, DAY.date())

    assert query(warehouse, "SELECT id FROM forms") == [(form,)]
