"""The tables of form_answers: what is read of PDFs, what a person has to, and what is replaced."""

import duckdb
import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from answer_reader import QUESTIONS, UncertainError, read_answers

from example_dags.form_answers import form_answers
from fsm_provider.testing import FormPdf
from fsm_provider.testing.form_pdf import QUESTIONS as FAKE_QUESTIONS
from fsm_provider.testing.pdf import pdf_for
from tests import form_pdfs
from tests.form_pdfs import LAYOUTS, made_pdfs, verdict

UNSAFE = "Is the appliance safe to use?"
ALARM = "Is a carbon monoxide alarm fitted?"
PRESSURE = "Operating pressure in mbar"


def record(form_id, updated="2026-03-01T08:00:00.000Z", form_name="Gas Safety Record"):
    return {
        "id": form_id,
        "formName": form_name,
        "createdOnDateTime": "2026-03-01T08:00:00.000Z",
        "lastUpdatedOnDateTime": updated,
        "propertyID": "7",
        "jobDetails": {"jobID": 21, "jobDescription": "Annual service"},
        "createdByUser": "Field engineer",
    }


class TestReader:
    @pytest.mark.parametrize("form_name", list(FAKE_QUESTIONS))
    @pytest.mark.parametrize("layout", ["table", "list"])
    @pytest.mark.parametrize("version", [1, 2])
    def test_it_reads_each_form_of_the_fake(self, form_name, layout, version):
        form = record(5001, form_name=form_name)
        shown = FormPdf(layout, version)

        read_version, answers = read_answers(pdf_for(form, shown), form_name)

        usual = shown.answers_of(form)
        expected = {question: answer for question, answer in usual.items() if answer}
        assert read_version == str(version)
        assert {answer.question: answer.answer for answer in answers} == expected

    def test_it_reads_most_pdfs_of_each_layout_and_files_nothing_that_is_wrong(self):
        """The 500 of ``docs/measured.md`` have another seed: ``python -m tests.form_pdfs``."""
        verdicts = {layout.__name__: [] for layout in LAYOUTS}
        for made in made_pdfs(100, seed=1):
            verdicts[made.layout].append(verdict(made))

        results = [result for results in verdicts.values() for result in results]
        assert "wrong" not in results
        assert results.count("right") >= 90
        for layout, of_layout in verdicts.items():
            assert of_layout.count("right") >= 6, layout

    def test_a_stray_note_is_not_taken_for_a_part_of_an_answer(self, monkeypatch):
        monkeypatch.setattr(form_pdfs, "SPOILED", {"stray note": 0.95})

        verdicts = [verdict(made) for made in made_pdfs(60, seed=101)]

        assert "wrong" not in verdicts

    @pytest.mark.parametrize(
        ("answers", "message"),
        [
            ({UNSAFE: "Safe, see photo"}, "cannot be answered by 'Safe, see photo'"),
            ({UNSAFE: ""}, "cannot be answered by ''"),
            ({"Defects that were found": "hyphen- " * 20}, "where the answer to 'Defects"),
        ],
    )
    def test_an_answer_that_is_not_certain_is_for_a_person(self, answers, message):
        pdf = pdf_for(record(5001), FormPdf(answers=answers))

        with pytest.raises(UncertainError, match=message):
            read_answers(pdf, "Gas Safety Record")

    def test_a_question_that_nobody_wrote_down_is_for_a_person(self, monkeypatch):
        monkeypatch.delitem(QUESTIONS["Gas Safety Record"], ALARM)
        pdf = pdf_for(record(5001), FormPdf(version=2))

        with pytest.raises(UncertainError, match="not each numbered text"):
            read_answers(pdf, "Gas Safety Record")
        with pytest.raises(UncertainError, match="'Site Survey' are not known"):
            read_answers(pdf, "Site Survey")


class Warehouse:
    """The example's tables, and its tasks that read and load."""

    def __init__(self, folder, file):
        self.folder = folder
        self.params = {"folder": str(folder), "warehouse": str(file)}
        dag = form_answers()
        self.read_pdfs = dag.get_task("read_pdfs").python_callable
        self.load_files = dag.get_task("load").python_callable

    def load(self, *forms, day="2026-03-02"):
        """Load forms, each a record and what its PDF is of; return how many are unread."""
        paths = []
        for number, (_, pdf) in enumerate(forms):
            path = self.folder / f"{day}-{number}.pdf"
            path.write_bytes(pdf)
            paths.append(str(path))
        records = [form for form, _ in forms]
        files = self.read_pdfs(records, {"paths": paths}, day, self.params)
        return self.load_files(files, self.params)

    def rows(self, query):
        with duckdb.connect(self.params["warehouse"], read_only=True) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "answers"
    folder.mkdir()
    return Warehouse(ObjectStoragePath(str(folder)), tmp_path / "answers.duckdb")


def filled_in(form_id, version=1, updated="2026-03-01T08:00:00.000Z", **answers):
    form = record(form_id, updated)
    return form, pdf_for(form, FormPdf(version=version, **answers))


def test_each_answer_is_a_row_and_each_question_a_column_over_versions(warehouse):
    assert warehouse.load(filled_in(1, version=1), filled_in(2, version=2)) == 0

    columns = f'form_id, version, "{ALARM}", "{PRESSURE}", "{UNSAFE}"'
    assert warehouse.rows(f"SELECT {columns} FROM gas_safety_record ORDER BY form_id") == [
        (1, "1", None, "20.1", "Safe"),
        (2, "2", "Yes", None, "Safe"),
    ]
    assert warehouse.rows("SELECT * FROM answers WHERE form_id = 2 AND question_number = 4") == [
        (2, "Gas Safety Record", "2", "2026-03-01T08:00:00.000Z", 4, ALARM, "Yes")
    ]
    assert warehouse.rows("SELECT count(*) FROM job_sign_off") == [(0,)]


def test_what_is_loaded_again_is_there_once_and_a_newer_version_takes_its_place(warehouse):
    first = filled_in(1)
    newer = filled_in(1, updated="2026-03-05T08:00:00.000Z", answers={UNSAFE: "Unsafe"})
    warehouse.load(first)
    warehouse.load(newer, day="2026-03-06")
    warehouse.load(first)

    safe = f'SELECT form_id, "{UNSAFE}" FROM gas_safety_record'
    assert warehouse.rows(safe) == [(1, "Unsafe")]
    assert warehouse.rows("SELECT count(*) FROM answers") == [(14,)]


def test_what_cannot_be_read_is_listed_and_hides_what_was_read_of_an_older_version(warehouse):
    warehouse.load(filled_in(1), filled_in(2))
    odd = filled_in(1, updated="2026-03-05T08:00:00.000Z", answers={UNSAFE: "Perhaps"})

    assert warehouse.load(odd, day="2026-03-06") == 1

    assert warehouse.rows("SELECT form_id FROM gas_safety_record") == [(2,)]
    ((form_id, updated, path, reason),) = warehouse.rows(
        "SELECT form_id, updated, path, reason FROM unread"
    )
    assert (form_id, updated) == (1, "2026-03-05T08:00:00.000Z")
    assert path.endswith("2026-03-06-0.pdf")
    assert "'Perhaps'" in reason


def test_a_form_that_was_updated_and_read_since_is_not_on_the_list(warehouse):
    odd = filled_in(1, answers={UNSAFE: "Perhaps"})
    assert warehouse.load(odd) == 1

    assert warehouse.load(filled_in(1, updated="2026-03-05T08:00:00.000Z"), day="2026-03-06") == 0
    assert warehouse.load(odd) == 0, "cleared, the older run changes nothing"

    assert warehouse.rows(f'SELECT "{UNSAFE}" FROM gas_safety_record') == [("Safe",)]


def test_what_can_be_read_later_leaves_the_list(warehouse, monkeypatch):
    odd = filled_in(1, answers={UNSAFE: "Perhaps"})
    assert warehouse.load(odd) == 1

    monkeypatch.setitem(QUESTIONS["Gas Safety Record"], UNSAFE, "Safe|Unsafe|Perhaps")

    assert warehouse.load(odd) == 0
    assert warehouse.rows(f'SELECT "{UNSAFE}" FROM gas_safety_record') == [("Perhaps",)]
