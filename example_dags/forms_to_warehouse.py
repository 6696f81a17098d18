"""Load the forms that changed, day by day, into a warehouse with the latest version of each form.

The warehouse is a DuckDB file; ``docs/files.md`` has the same for PostgreSQL. A run exports a
window, which is all forms that were updated since its day began, into a file of its own
(``window_start=2026-11-22/forms.parquet``), and replaces the window's rows in the table
``form_versions``, in one transaction. So a run may be retried, cleared or repeated, in any order:
no row is there twice, and the view ``forms`` has one row for each form, that of its latest update.

A window goes back by a look-back, because phones sync late and clocks differ. It has no end: the
service lists a form in its latest version only, so an old window that is exported again would lose
the forms that changed after it. After a pause, Airflow runs the days that were left out
(``catchup``). So set ``start_date`` to the day on which you begin. For the forms before it, trigger
one run with their first day as ``day``. Such a run also gets a form that reached the service later
than the look-back.

A form that the service no longer lists stays. DuckDB has one writer at a time, so the DAG allows
one run. Needs ``airflow-provider-fsm[parquet]`` and ``duckdb``.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, dag, task

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator

DATA = Path(__file__).parent / "data"
LOOK_BACK = timedelta(days=7)

# The table has the columns of the first export, and no rows yet.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS form_versions AS
    SELECT NULL::DATE AS window_start, * FROM exported LIMIT 0
"""
DELETE_WINDOW = "DELETE FROM form_versions WHERE window_start = ?"
INSERT_WINDOW = """
    INSERT INTO form_versions BY NAME
    SELECT ?::DATE AS window_start, * FROM exported
"""
# Where two versions have the same time or none, the later window's counts.
CREATE_VIEW = """
    CREATE OR REPLACE VIEW forms AS
    SELECT * FROM form_versions
    QUALIFY row_number() OVER (
        PARTITION BY id
        ORDER BY lastUpdatedOnDateTime DESC NULLS LAST, window_start DESC
    ) = 1
"""
COUNT_FORMS = "SELECT count(*) FROM forms"


def window_for(day: str | None, run_at: datetime) -> dict[str, str]:
    """Return the window of a run: ``start``, its day, and ``since``, the time to list from.

    :param day: the day of the window (default: the day before the run's).
    """
    day_before_run = run_at.astimezone(UTC).date() - timedelta(days=1)
    start = date.fromisoformat(day) if day else day_before_run
    since = datetime.combine(start, time(), UTC) - LOOK_BACK
    return {"start": str(start), "since": since.isoformat()}


@dag(
    schedule="@daily",
    start_date=datetime(2026, 11, 22, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "folder": Param(
            str(DATA / "forms"), type="string", minLength=1, title="Folder of the windows"
        ),
        "warehouse": Param(
            str(DATA / "forms.duckdb"), type="string", minLength=1, title="DuckDB file"
        ),
        "day": Param(
            None, type=["null", "string"], format="date", title="Day (default: before the run)"
        ),
    },
)
def forms_to_warehouse():
    @task(multiple_outputs=True)
    def choose_window(params, dag_run, data_interval_end=None):
        """Return the window of this run."""
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        run_at = data_interval_end or dag_run.run_after
        return window_for(params["day"], run_at)

    # [START howto_window]
    window = choose_window()
    export = FsmFormsToObjectStorageOperator(
        task_id="export",
        updated_since=window["since"],
        destination=(
            "{{ params.folder }}"
            "/window_start={{ ti.xcom_pull(task_ids='choose_window')['start'] }}"
            "/forms.parquet"
        ),
    )

    @task
    def load(exported, window_start, params):
        """Replace a window's rows, all or none; return how many forms the view has."""
        import duckdb
        from pyarrow import parquet

        with ObjectStoragePath(exported["path"]).open("rb") as file:
            rows = parquet.read_table(file)
        with duckdb.connect(params["warehouse"]) as warehouse:
            # The statements read the rows as if they were a table "exported".
            warehouse.register("exported", rows)
            warehouse.begin()
            warehouse.execute(CREATE_TABLE)
            warehouse.execute(DELETE_WINDOW, [window_start])
            warehouse.execute(INSERT_WINDOW, [window_start])
            warehouse.execute(CREATE_VIEW)
            warehouse.commit()
            (count,) = warehouse.execute(COUNT_FORMS).fetchone()
            return count

    load(export.output, window["start"])
    # [END howto_window]


forms_to_warehouse()
