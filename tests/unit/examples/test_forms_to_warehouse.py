"""The windows of forms_to_warehouse: each begins before its day; a load replaces one, or nothing."""

from datetime import UTC, date, datetime

import duckdb
import pyarrow
import pytest
from pyarrow import parquet

from example_dags.forms_to_warehouse import forms_to_warehouse, window_for

FIRST, SECOND = "2026-01-05", "2026-01-06"


@pytest.mark.parametrize(
    ("day", "run_at", "start", "since"),
    [
        (None, "2026-11-23T00:00:00+00:00", "2026-11-22", "2026-11-15T00:00:00+00:00"),
        (None, "2026-11-23T00:30:00+01:00", "2026-11-21", "2026-11-14T00:00:00+00:00"),
        ("2026-01-01", "2026-11-23T00:00:00+00:00", "2026-01-01", "2025-12-25T00:00:00+00:00"),
    ],
)
def test_a_window_is_of_a_day_in_utc_and_begins_a_week_before(day, run_at, start, since):
    assert window_for(day, datetime.fromisoformat(run_at)) == {"start": start, "since": since}


class Warehouse:
    """The example's warehouse, and its task that loads."""

    def __init__(self, windows, file):
        self.windows = windows
        self.params = {"warehouse": str(file)}
        self.task = forms_to_warehouse().get_task("load")

    def load(self, start, forms, **columns):
        """Load a window of forms, each with the day of its update, and further columns."""
        window = self.windows / start
        window.mkdir(parents=True, exist_ok=True)
        days = [day and datetime(2026, 1, day, tzinfo=UTC) for day in forms.values()]
        times = pyarrow.array(days, pyarrow.timestamp("us", tz="UTC"))
        ids = pyarrow.array(forms, pyarrow.int64())
        table = pyarrow.table({"id": ids, "lastUpdatedOnDateTime": times, **columns})
        with (window / "forms.parquet").open("wb") as file:
            parquet.write_table(table, file)
        return self.task.python_callable(
            {"path": str(window / "forms.parquet")}, window_start=start, params=self.params
        )

    def rows(self, table):
        with duckdb.connect(self.params["warehouse"], read_only=True) as connection:
            statement = (
                f"SELECT id, window_start, day(lastUpdatedOnDateTime) FROM {table} ORDER BY ALL"
            )
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(statement).fetchall()


@pytest.fixture
def warehouse(storage, tmp_path):
    return Warehouse(storage, tmp_path / "forms.duckdb")


def test_a_load_replaces_its_window_and_the_view_has_latest_versions(warehouse):
    first, second = map(date.fromisoformat, (FIRST, SECOND))
    assert warehouse.load(FIRST, {1: 5, 2: 5, 3: None, 4: 5}) == 4
    assert warehouse.load(SECOND, {1: 6, 2: 5, 3: None, 4: None}) == 4
    assert warehouse.rows("forms") == [
        (1, second, 6),
        (2, second, 5),
        (3, second, None),
        (4, first, 5),
    ]

    assert warehouse.load(FIRST, {1: 5, 3: None, 5: 7}) == 5

    assert warehouse.rows("forms") == [
        (1, second, 6),
        (2, second, 5),
        (3, second, None),
        (4, second, None),
        (5, first, 7),
    ]
    assert len(warehouse.rows("form_versions")) == 3 + 4


def test_a_load_that_fails_leaves_the_rows_of_the_one_before(warehouse):
    warehouse.load(FIRST, {1: 5, 2: 5})
    before = warehouse.rows("form_versions")

    with pytest.raises(duckdb.Error, match="unknown"):
        warehouse.load(FIRST, {1: 6}, unknown=["x"])

    assert warehouse.rows("form_versions") == before
