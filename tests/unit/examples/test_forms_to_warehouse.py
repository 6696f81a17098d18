"""The windows of forms_to_warehouse: each begins before its day."""

from datetime import datetime

import pytest

from example_dags.forms_to_warehouse import window_for


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
