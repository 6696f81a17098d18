"""Draft invoices: one a job, over the amount that its creation was given, or none and a reason."""

from contextlib import nullcontext

import pytest

from example_dags import invoice_on_signoff as invoices
from example_dags import planned_maintenance_jobs as planned
from fsm_provider.storage.atomic_files import AtomicFiles


def form(number, job=77, created="2026-03-01T12:00:00.000Z"):
    return {
        "id": number,
        "formName": "Job Sign-off",
        "propertyID": "7",
        "jobID": job,
        "createdOnDateTime": created,
        "lastUpdatedOnDateTime": created,
    }


def created(**amounts):
    return {job[1:]: {"reference": f"PM-{job}", "quotedAmount": amount} for job, amount in amounts.items()}


def reasons(held):
    return {form["id"]: form["reason"] for form in held}


class TestDecide:
    def test_a_job_that_is_signed_off_has_a_draft(self):
        drafts, held = invoices.decide([form(1)], {}, created(_77="120.00"))

        assert held == []
        assert drafts == [
            {
                "status": "draft",
                "jobID": 77,
                "propertyID": "7",
                "customerReference": "PM-_77",
                "amount": "120.00",
                "formID": 1,
                "signedOffOn": "2026-03-01T12:00:00.000Z",
            }
        ]

    def test_the_form_that_made_the_draft_makes_no_other(self):
        assert invoices.decide([form(1)], {"77": 1}, created(_77="120.00")) == ([], [])

    def test_another_form_on_the_job_makes_none_and_is_held(self):
        drafts, held = invoices.decide([form(2)], {"77": 1}, created(_77="120.00"))

        assert drafts == []
        assert reasons(held) == {2: "job 77 has a draft for form 1"}

    @pytest.mark.parametrize("forms", [[form(1), form(2)], [form(2), form(1)]])
    def test_of_two_new_forms_on_a_job_the_older_makes_the_draft(self, forms):
        drafts, held = invoices.decide(forms, {}, created(_77="120.00"))

        assert [draft["formID"] for draft in drafts] == [1]
        assert reasons(held) == {2: "job 77 has a draft for form 1"}

    @pytest.mark.parametrize(("job", "said"), [(78, "78"), (None, "None")])
    def test_a_job_that_was_not_created_here_is_held(self, job, said):
        drafts, held = invoices.decide([form(1, job)], {}, created(_77="120.00"))

        assert drafts == []
        assert reasons(held) == {1: f"job {said} is not among the jobs that were created"}

    @pytest.mark.parametrize("amount", ["", None, "0", "0.00", "-5", "120,00", "NaN", "Infinity", "tba"])
    def test_a_job_without_a_usable_amount_is_held(self, amount):
        drafts, held = invoices.decide([form(1)], {}, created(_77=amount))

        assert drafts == []
        assert reasons(held) == {1: f"job 77 was created over {amount or 'no amount'}"}

    def test_an_amount_keeps_its_digits(self):
        amounts = ["0.10", "1000000.005", "1E+3"]

        drafts = [invoices.decide([form(1)], {}, created(_77=amount))[0][0] for amount in amounts]

        assert [draft["amount"] for draft in drafts] == ["0.10", "1000000.005", "1000"]

    def test_a_draft_that_may_have_been_written_is_held_and_not_written_again(self):
        drafts, held = invoices.decide([form(1), form(2)], {}, created(_77="120.00"), {"77"})

        assert drafts == []
        assert set(reasons(held).values()) == {"job 77 may have a draft: see begun/job=77.json"}


DRAFT = {"status": "draft", "jobID": 77, "formID": 1}
NAME = "job=77.json"


class StoppedError(Exception):
    """The task is killed."""


class TestHandOver:
    def test_a_draft_that_was_removed_stays_recorded(self, storage):
        with AtomicFiles(storage, None) as files:
            invoices.hand_over(files, DRAFT)
            assert invoices.read_record(storage / NAME) == DRAFT
            (storage / NAME).unlink()

            assert invoices.record_drafts(files) == ({NAME}, set())

        assert invoices.read_record(storage / "records" / NAME) == DRAFT
        assert invoices.names_in(storage / "begun") == set()

    def test_a_draft_of_a_version_without_records_is_recorded(self, storage):
        with AtomicFiles(storage, None) as files:
            files.store(NAME, [invoices.bytes_for(DRAFT)])

            assert invoices.record_drafts(files) == ({NAME}, set())

        assert invoices.read_record(storage / "records" / NAME) == DRAFT

    @pytest.mark.parametrize("taken", [False, True])
    @pytest.mark.parametrize("writes", range(4))
    def test_stopped_after_any_write_nothing_is_lost_and_nothing_written_twice(self, storage, writes, taken):
        class Stopping(AtomicFiles):
            left = writes

            def store(self, name, chunks):
                if not self.left:
                    raise StoppedError
                self.left -= 1
                return super().store(name, chunks)

        stopped = pytest.raises(StoppedError) if writes < 3 else nullcontext()
        with stopped, Stopping(storage, None) as files:
            invoices.hand_over(files, DRAFT)
        if taken and writes >= 2:
            (storage / NAME).unlink()

        with AtomicFiles(storage, None) as files:
            known = invoices.record_drafts(files)
            assert invoices.record_drafts(files) == known

        sure, unsure = ({NAME}, set()), (set(), {NAME})
        assert known == [(set(), set()), unsure, unsure if taken else sure, sure][writes]
        assert invoices.names_in(storage / "begun") == known[1]

    @pytest.mark.parametrize("place", ["records", "."])
    def test_a_person_decides_what_was_stopped_by_moving_its_file(self, tmp_path, place):
        begun = tmp_path / "begun" / NAME
        begun.parent.mkdir()
        begun.write_bytes(invoices.bytes_for(DRAFT))
        (tmp_path / "records").mkdir()

        begun.rename(tmp_path / place / NAME)

        with AtomicFiles(planned.ObjectStoragePath(str(tmp_path)), None) as files:
            assert invoices.record_drafts(files) == ({NAME}, set())


class TestOutcomes:
    def write(self, folder, run_id, **outcomes):
        rows = [
            planned.report_row(name, "7", outcome, jobID=name[1:], quotedAmount="120.00")
            for name, outcome in outcomes.items()
        ]
        planned.write_rows(planned.file_for(folder, run_id, planned.OUTCOMES), rows)

    def test_what_was_created_is_read_of_every_run(self, storage):
        self.write(storage, "manual__2026-03-01T06:00:00+00:00", A77="created", A78="rejected")
        self.write(storage, "b", A79="created", A80="uncertain")
        self.write(storage, "b", A81="created")

        rows = invoices.read_outcomes(storage)

        assert rows.keys() == {"77", "79", "81"}
        assert rows["77"]["reference"] == "A77"
        assert rows["77"]["quotedAmount"] == "120.00"

    def test_half_a_file_gives_no_half_amount(self, tmp_path):
        folder = planned.ObjectStoragePath(str(tmp_path))
        self.write(folder, "run", A77="created", A78="created")
        file = planned.file_for(folder, "run", planned.OUTCOMES)
        complete = file.read_text()

        for length in range(len(complete)):
            file.write_text(complete[:length])
            assert {row["quotedAmount"] for row in invoices.read_outcomes(folder).values()} <= {"120.00"}

    def test_outcomes_of_before_amounts_were_kept_have_none(self, storage):
        storage.mkdir(parents=True, exist_ok=True)
        (storage / "old.outcomes.csv").write_text("reference,outcome,jobID\nA,created,77\n")

        assert invoices.amount_for(invoices.read_outcomes(storage)["77"]) is None

    def test_a_folder_that_is_not_there_has_no_outcomes(self, storage):
        assert invoices.read_outcomes(storage / "none") == {}


def test_a_file_is_named_by_its_job_and_form_whatever_they_are():
    assert invoices.draft_name(77) == "job=77.json"
    assert invoices.held_name(form(3, "../x/7")) == "held/job=..%2Fx%2F7,form=3.json"
