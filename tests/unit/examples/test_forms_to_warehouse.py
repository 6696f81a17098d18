"""The windows of forms_to_warehouse: each begins before its day; a load replaces a whole window."""

from datetime import UTC, date, datetime

import duckdb
import pyarrow
import pytest
from pyarrow import parquet

from example_dags.forms_to_warehouse import forms_to_warehouse, window_for

FIRST = date(2026, 1, 5)
SECOND = date(2026, 1, 6)


@pytest.mark.parametrize(
    ("day", "run_at", "start", "since"),
    [
        (None, "2026-11-23T00:00:00+00:00", "2026-11-22", "2026-11-15T00:00:00+00:00"),
        (None, "2026-11-23T00:30:00+01:00", "2026-11-21", "2026-11-14T00:00:00+00:00"),
        ("2026-01-01", "2026-11-23T00:00:00+00:00", "2026-01-01", "2025-12-25T00:00:00+00:00"),
    ],
)
def test_a_window_is_of_a_day_in_utc_and_begins_a_week_before(day, run_at, start, since):
    window = window_for(day, datetime.fromisoformat(run_at))

    assert window == {"start": start, "since": since}


def at(day):
    """Return a time of a day in January; None for a form without a time."""
    return None if day is None else datetime(2026, 1, day, tzinfo=UTC)


class Warehouse:
    """The example's warehouse, and its task that loads."""

    def __init__(self, windows, file):
        self.windows = windows
        self.params = {"warehouse": str(file)}
        self.task = forms_to_warehouse().get_task("load")

    def load(self, start, forms, **columns):
        """Load a window of forms, each with the day of its update, and further columns."""
        window = self.windows / str(start)
        window.mkdir(parents=True, exist_ok=True)
        path = window / "forms.parquet"
        updated = [at(day) for day in forms.values()]
        table = pyarrow.table(
            {
                "id": pyarrow.array(forms, pyarrow.int64()),
                "lastUpdatedOnDateTime": pyarrow.array(updated, pyarrow.timestamp("us", tz="UTC")),
                **columns,
            }
        )
        with path.open("wb") as file:
            parquet.write_table(table, file)
        return self.task.python_callable(
            {"path": str(path)},
            window_start=str(start),
            params=self.params,
        )

    def rows(self, table):
        """Return the id, the window and the day of the update of each row."""
        columns = "id, window_start, day(lastUpdatedOnDateTime)"
        with duckdb.connect(self.params["warehouse"], read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            selected = connection.execute(f"SELECT {columns} FROM {table} ORDER BY ALL")
            return selected.fetchall()


@pytest.fixture
def warehouse(storage, tmp_path):
    return Warehouse(storage, tmp_path / "forms.duckdb")


def test_a_load_replaces_its_window_and_the_view_has_latest_versions(warehouse):
    assert warehouse.load(FIRST, {1: 5, 2: 5, 3: None, 4: 5}) == 4
    assert warehouse.load(SECOND, {1: 6, 2: 5, 3: None, 4: None}) == 4
    assert warehouse.rows("forms") == [
        (1, SECOND, 6),
        (2, SECOND, 5),
        (3, SECOND, None),
        (4, FIRST, 5),
    ]

    assert warehouse.load(FIRST, {1: 5, 3: None, 5: 7}) == 5

    assert warehouse.rows("forms") == [
        (1, SECOND, 6),
        (2, SECOND, 5),
        (3, SECOND, None),
        (4, SECOND, None),
        (5, FIRST, 7),
    ]
    assert len(warehouse.rows("form_versions")) == 3 + 4


def test_a_load_that_fails_leaves_the_rows_of_the_one_before(warehouse):
    warehouse.load(FIRST, {1: 5, 2: 5})
    before = warehouse.rows("form_versions")

    with pytest.raises(duckdb.Error, match="unknown"):
        warehouse.load(FIRST, {1: 6}, unknown=["x"])

    assert warehouse.rows("form_versions") == before
