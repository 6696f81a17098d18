"""Draft invoices: each job has one over the amount of its creation, or none and a reason."""

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


CREATED = {"77": {"customerReference": "PM-77", "quotedAmount": "120.00"}}


def test_a_job_that_is_signed_off_has_a_draft():
    drafts, held = invoices.decide([form(1)], {}, CREATED)

    assert drafts == [
        {
            "status": "draft",
            "jobID": 77,
            "propertyID": "7",
            "customerReference": "PM-77",
            "amount": "120.00",
            "formID": 1,
            "signedOffOn": "2026-03-01T12:00:00.000Z",
        }
    ]
    assert held == []


@pytest.mark.parametrize(
    ("forms", "invoiced", "begun", "drafted", "reasons"),
    [
        ([form(2)], {"77": 1}, (), [], {2: "job 77 has a draft for form 1"}),
        ([form(1), form(2)], {}, (), [1], {2: "job 77 has a draft for form 1"}),
        ([form(2), form(1)], {}, (), [1], {2: "job 77 has a draft for form 1"}),
        ([form(1, None)], {}, (), [], {1: "job None is not in the due list"}),
        ([form(1)], {}, {"77"}, [], {1: "job 77 may have a draft: see begun/job=77.json"}),
    ],
)
def test_what_may_not_be_invoiced_is_held(forms, invoiced, begun, drafted, reasons):
    drafts, held = invoices.decide(forms, invoiced, CREATED, begun)

    assert [draft["formID"] for draft in drafts] == drafted
    assert {form["id"]: form["reason"] for form in held} == reasons


DRAFT = {"status": "draft", "jobID": 77, "formID": 1}
NAME = "job=77.json"


NOTHING = (set(), set())
WRITTEN = ({NAME}, set())
"""What record_drafts returns if the draft was written."""
UNSURE = (set(), {NAME})
"""What record_drafts returns if the draft may have been written."""


class StoppedError(Exception):
    """The task is killed."""


class StoppingFiles(AtomicFiles):
    """Files of a task that is killed after so many writes."""

    def __init__(self, folder, writes):
        super().__init__(folder, None)
        self.writes_left = writes

    def store(self, name, chunks):
        if self.writes_left == 0:
            raise StoppedError
        self.writes_left -= 1
        return super().store(name, chunks)


class TestHandOver:
    def test_a_draft_that_was_removed_stays_recorded(self, storage):
        with AtomicFiles(storage, None) as files:
            invoices.hand_over(files, DRAFT)
            assert invoices.read_record(storage / NAME) == DRAFT
            (storage / NAME).unlink()

            assert invoices.record_drafts(files) == WRITTEN

        assert invoices.read_record(storage / "records" / NAME) == DRAFT
        assert invoices.names_in(storage / "begun") == set()

    @pytest.mark.parametrize(
        ("writes", "is_taken_away", "expected"),
        [
            (0, False, NOTHING),
            (1, False, UNSURE),
            (2, False, WRITTEN),
            (2, True, UNSURE),
            (3, False, WRITTEN),
            (3, True, WRITTEN),
        ],
    )
    def test_stopped_after_any_write_nothing_is_lost_and_nothing_written_twice(
        self, storage, writes, is_taken_away, expected
    ):
        stopped = pytest.raises(StoppedError) if writes < 3 else nullcontext()
        with stopped, StoppingFiles(storage, writes) as files:
            invoices.hand_over(files, DRAFT)
        if is_taken_away:
            (storage / NAME).unlink()

        with AtomicFiles(storage, None) as files:
            recorded, begun = invoices.record_drafts(files)
            again = invoices.record_drafts(files)

        assert (recorded, begun) == expected
        assert again == expected
        assert invoices.names_in(storage / "begun") == begun

    @pytest.mark.parametrize("place", ["records", "."])
    def test_a_person_decides_what_was_stopped_by_moving_its_file(self, tmp_path, place):
        begun = tmp_path / "begun" / NAME
        begun.parent.mkdir()
        begun.write_bytes(invoices.bytes_for(DRAFT))
        (tmp_path / "records").mkdir()

        begun.rename(tmp_path / place / NAME)

        folder = planned.ObjectStoragePath(str(tmp_path))
        with AtomicFiles(folder, None) as files:
            assert invoices.record_drafts(files) == WRITTEN


class TestJobsIn:
    LIST = EXAMPLES / "data" / "planned_maintenance.csv"

    def test_the_jobs_are_those_that_planned_maintenance_sends(self):
        """Else the ledger would take them for other jobs."""
        text = self.LIST.read_text()

        assert invoices.jobs_in(text) == planned.due_jobs(text, date.max)

    @pytest.mark.parametrize("amount", ["-5", '"120,00"', "NaN!", "Infinity", "tba", "1E+3"])
    def test_what_is_no_amount_is_refused(self, amount):
        text = f"reference,propertyID,due,quotedAmount\nA,7,2026-01-05,{amount}\n"

        with pytest.raises(FsmInputError, match=r"row 1 \(key 'A'\): quotedAmount"):
            invoices.jobs_in(text)


def test_a_file_is_named_by_its_job_and_form_whatever_they_are():
    assert invoices.draft_name(77) == "job=77.json"
    assert invoices.held_name(form(3, "../x/7")) == "held/job=..%2Fx%2F7,form=3.json"
