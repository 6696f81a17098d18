"""Draft invoices: one a job, over the amount that its creation was given, or none and a reason."""

from contextlib import nullcontext
from datetime import date
from pathlib import Path

import pytest

from example_dags import invoice_on_signoff as invoices
from example_dags import planned_maintenance_jobs as planned
from fsm_provider.api.errors import FsmInputError
from fsm_provider.storage import AtomicFiles

EXAMPLES = Path(planned.__file__).parent


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
    """Map jobs to what they were created with; one without an amount has no such field."""
    return {
        job[1:]: {"customerReference": f"PM-{job}"} | ({"quotedAmount": amount} if amount else {})
        for job, amount in amounts.items()
    }


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
        assert reasons(held) == {1: f"job {said} is not in the due list"}

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


class TestJobsIn:
    LIST = EXAMPLES / "data" / "planned_maintenance.csv"

    def test_the_jobs_are_those_that_planned_maintenance_sends(self):
        """Else the ledger would take them for other jobs."""
        assert invoices.jobs_in(self.LIST.read_text()) == planned.due_jobs(self.LIST.read_text(), date.max)

    @pytest.mark.parametrize("amount", ["-5", '"120,00"', "NaN!", "Infinity", "tba", "1E+3"])
    def test_what_is_no_amount_is_refused(self, amount):
        with pytest.raises(FsmInputError, match="row 1: quotedAmount"):
            invoices.jobs_in(f"reference,propertyID,due,quotedAmount\nA,7,2026-01-05,{amount}\n")


def test_a_file_is_named_by_its_job_and_form_whatever_they_are():
    assert invoices.draft_name(77) == "job=77.json"
    assert invoices.held_name(form(3, "../x/7")) == "held/job=..%2Fx%2F7,form=3.json"
