"""Draft invoices: each job has one over the amount of its creation, or none and a reason."""

from datetime import date
from pathlib import Path

import pytest

from example_dags import invoice_on_signoff as invoices
from example_dags import planned_maintenance_jobs as planned
from fsm_provider.api.errors import FsmInputError

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
    drafts, held = invoices.decide([form(1)], CREATED)

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
    ("forms", "created", "drafted", "reasons"),
    [
        ([form(1), form(2)], CREATED, [1], []),
        ([form(2), form(1)], CREATED, [1], []),
        ([form(1, None)], CREATED, [], ["form 1: job None is not in the due list"]),
        ([form(1)], {}, [], ["form 1: job 77 is not in the due list"]),
        ([form(1)], {"77": {}}, [], ["form 1: job 77 has no amount in the due list"]),
        (
            [form(1)],
            {"77": {"quotedAmount": "0.00"}},
            [],
            ["form 1: job 77 has no amount in the due list"],
        ),
    ],
)
def test_a_job_has_one_draft_and_what_may_not_be_invoiced_is_said(forms, created, drafted, reasons):
    drafts, held = invoices.decide(forms, created)

    assert [draft["formID"] for draft in drafts] == drafted
    assert held == reasons


def test_a_draft_that_is_there_is_left_alone(tmp_path):
    write = invoices.invoice_on_signoff().get_task("draft_invoices").python_callable
    jobs = [{"job": CREATED["77"]}]
    params = {"form_name": "Job Sign-off", "invoices": str(tmp_path)}

    first = write([form(1)], jobs, [{"jobID": 77}], params)
    second = write([form(2, created="2025-01-01T00:00:00.000Z")], jobs, [{"jobID": 77}], params)

    assert [draft["formID"] for draft in first["drafted"]] == [1]
    assert second == {"drafted": [], "held": []}
    (file,) = tmp_path.glob("*.json")
    assert '"formID": 1' in file.read_text()


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


def test_a_file_is_named_by_its_job_whatever_that_is():
    assert invoices.draft_name(77) == "job=77.json"
    assert invoices.draft_name("../x") == "job=..%2Fx.json"
