"""Make a table of what engineers answered: each answer a row, and each question a column.

A record that the service lists has no answers; its PDF has. Each run stores the PDFs of the forms
that were updated in the last days, reads them with ``answer_reader.py``, and writes the answers
into a Parquet file of its day. Then it loads them into a DuckDB file:

- ``answers``: form_id, form_name, version, updated, question_number, question and answer, of each
  version of each form.
- ``gas_safety_record`` and so on: a table for each form in ``QUESTIONS`` of the reader, with a row
  for each form as it is now, and a column for each question. A column is NULL if the form's version
  lacks the question, or nobody answered it.
- ``unread``: the forms that a person has to read, with the path of the PDF and the reason. Nothing
  else is known of these, not even an answer of an older version.

A run may be repeated, in any order: no row is there twice. A form that the reader can read later,
as somebody has corrected ``QUESTIONS``, leaves ``unread``: clear the run, or trigger one with more
days. DuckDB has one writer at a time, so the DAG allows one run. Needs
``airflow-provider-fsm[parquet]``, ``duckdb`` and ``pdfplumber``.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, dag, task

from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator

# answer_reader.py is beside this file, in whichever folder below Airflow's folder of DAGs.
sys.path.append(str(Path(__file__).parent))
from answer_reader import QUESTIONS, UncertainError, read_answers

DATA = Path(__file__).parent / "data"
SCHEMAS = {
    "answers": [
        ("form_id", "int64"),
        ("form_name", "string"),
        ("version", "string"),
        ("updated", "string"),
        ("question_number", "int32"),
        ("question", "string"),
        ("answer", "string"),
    ],
    "unread": [
        ("form_id", "int64"),
        ("form_name", "string"),
        ("updated", "string"),
        ("path", "string"),
        ("reason", "string"),
    ],
}
"""The columns of the Parquet files, and of the tables."""
CREATE_TABLE = "CREATE TABLE IF NOT EXISTS {table} AS SELECT * FROM new_{table} LIMIT 0"
# What was read before of the same version of a form is replaced.
DELETE = """
    DELETE FROM {table} WHERE (form_id, updated) IN (
        SELECT (form_id, updated) FROM new_answers UNION SELECT (form_id, updated) FROM new_unread
    )
"""
INSERT = "INSERT INTO {table} BY NAME SELECT * FROM new_{table}"
# A form that was updated since is another matter.
DELETE_OLD = """
    DELETE FROM unread WHERE updated < (
        SELECT max(updated) FROM (
            SELECT form_id, updated FROM answers UNION SELECT form_id, updated FROM unread
        ) AS versions
        WHERE versions.form_id = unread.form_id
    )
"""
# The latest version of each form, if it could be read.
CREATE_COLUMNS = """
    CREATE OR REPLACE TABLE {table} AS
    WITH versions AS (
        SELECT form_id, updated FROM answers UNION SELECT form_id, updated FROM unread
    ),
    latest AS (SELECT form_id, max(updated) AS updated FROM versions GROUP BY form_id),
    current AS (
        SELECT * EXCLUDE (question_number) FROM answers SEMI JOIN latest USING (form_id, updated)
        WHERE form_name = '{form_name}'
    )
    PIVOT current ON question IN ({questions}) USING first(answer)
    GROUP BY form_id, version, updated
"""


def columns_statement(form_name: str) -> str:
    """Return the statement that makes the table of a form, with a column for each question."""
    questions = ", ".join(quoted(question) for question in QUESTIONS[form_name])
    table = form_name.lower().replace(" ", "_").replace("-", "_")
    return CREATE_COLUMNS.format(table=table, form_name=form_name, questions=questions)


def quoted(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def read_form(form: dict, path: str) -> tuple[list[dict], list[dict]]:
    """Return the rows of a form for ``answers``, or the one for ``unread``."""
    about = {
        "form_id": form["id"],
        "form_name": form["formName"],
        "updated": form["lastUpdatedOnDateTime"],
    }
    try:
        version, answers = read_answers(ObjectStoragePath(path).read_bytes(), form["formName"])
    except UncertainError as error:
        return [], [{**about, "path": path, "reason": str(error)}]
    rows = []
    for number, question, answer in answers:
        row = {"version": version, "question_number": number, "question": question}
        rows.append({**about, **row, "answer": answer})
    return rows, []


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "folder": Param(
            str(DATA / "form_answers"),
            type="string",
            minLength=1,
            title="Folder of PDFs and answers",
        ),
        "warehouse": Param(
            str(DATA / "answers.duckdb"), type="string", minLength=1, title="DuckDB file"
        ),
        "days": Param(8, type="integer", minimum=1, title="Days to go back: phones sync late"),
    },
)
def form_answers():
    @task(multiple_outputs=True)
    def begin(params, dag_run, data_interval_end=None):
        """Return the day of the run, and the time from which it lists."""
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        run_at = data_interval_end or dag_run.run_after
        since = run_at - timedelta(days=params["days"])
        return {"day": str(run_at.date()), "since": since.isoformat()}

    @task
    def choose_forms(listed):
        """Return the forms whose questions are known."""
        return [form for form in listed if form["formName"] in QUESTIONS]

    @task(multiple_outputs=True)
    def read_pdfs(forms, stored, day, params):
        """Write what the PDFs say into Parquet files; return their paths."""
        import pyarrow
        from pyarrow import parquet

        rows: dict[str, list[dict]] = {"answers": [], "unread": []}
        # The operator returns one path for each form, in their order.
        for form, path in zip(forms, stored["paths"], strict=True):
            answers, unread = read_form(form, path)
            rows["answers"] += answers
            rows["unread"] += unread

        folder = ObjectStoragePath(params["folder"]) / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        paths = {}
        for table, columns in SCHEMAS.items():
            schema = pyarrow.schema(columns)
            with (folder / f"{table}.parquet").open("wb") as file:
                parquet.write_table(pyarrow.Table.from_pylist(rows[table], schema), file)
            paths[table] = str(folder / f"{table}.parquet")
        print(f"{len(forms)} forms, of which a person has to read {len(rows['unread'])}")
        return paths

    @task
    def load(paths, params):
        """Load both files, all or nothing; return how many forms a person has to read."""
        import duckdb
        from pyarrow import parquet

        with duckdb.connect(params["warehouse"]) as warehouse:
            for table, path in paths.items():
                with ObjectStoragePath(path).open("rb") as file:
                    # The statements read the rows as if they were a table.
                    warehouse.register(f"new_{table}", parquet.read_table(file))
            warehouse.begin()
            for table in paths:
                warehouse.execute(CREATE_TABLE.format(table=table))
                warehouse.execute(DELETE.format(table=table))
                warehouse.execute(INSERT.format(table=table))
            warehouse.execute(DELETE_OLD)
            for form_name in QUESTIONS:
                warehouse.execute(columns_statement(form_name))
            warehouse.commit()
            (count,) = warehouse.execute("SELECT count(*) FROM unread").fetchone()
            return count

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    forms = choose_forms(list_forms.output)
    store_pdfs = FsmFormPdfsToObjectStorageOperator(
        task_id="store_pdfs",
        forms=forms,
        destination="{{ params.folder }}/pdfs",
    )
    load(read_pdfs(forms, store_pdfs.output, begun["day"]))


form_answers()
