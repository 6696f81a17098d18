"""The PDFs of the fake's forms have questions and answers that a reader can have."""

import re
from io import BytesIO

import pdfplumber
import pytest

from fsm_provider.testing import Engineer, FakeFieldService, FormPdf
from tests.unit.testing.fake_command import running_fake

UNSAFE = {"Is the appliance safe to use?": "Unsafe"}


def text_of(pdf):
    with pdfplumber.open(BytesIO(pdf)) as document:
        return "\n".join(page.extract_text() for page in document.pages)


def table_in(pdf):
    with pdfplumber.open(BytesIO(pdf)) as document:
        return document.pages[0].extract_table()


def test_a_pdf_names_its_form_job_and_property_and_has_each_answer(call):
    form = call.service.add_form(job_id=21, property_id=7)

    text = text_of(call.service.pdf(form["id"]))

    assert text.startswith("Gas Safety Record\nVersion 1\n")
    assert f"Form {form['id']}, updated {form['lastUpdatedOnDateTime']}" in text
    assert "Job 21: Annual service" in text
    assert "Property 7: 7 High Street, Anytown, AN1 1AA" in text
    assert "5. Is the appliance safe to use? Safe" in text
    assert f"Date of the check {form['createdOnDateTime'][:10]}" in text


def test_a_version_has_a_question_that_the_other_lacks(call):
    tables = {}
    for version in (1, 2):
        form = call.service.add_form(pdf=FormPdf(version=version))
        table = table_in(call.service.pdf(form["id"]))
        tables[version] = {row[0].partition(". ")[2].replace("\n", " ") for row in table}

    assert tables[2] - tables[1] == {"Is a carbon monoxide alarm fitted?"}
    assert tables[1] - tables[2] == {"Operating pressure in mbar"}


def test_a_layout_has_lines_and_the_other_has_none(call):
    table = call.service.add_form(pdf=FormPdf(layout="table", answers=UNSAFE))
    below = call.service.add_form(pdf=FormPdf(layout="list", answers=UNSAFE))

    assert ["5. Is the appliance safe to use?", "Unsafe"] in table_in(call.service.pdf(table["id"]))
    pdf = call.service.pdf(below["id"])
    assert table_in(pdf) is None
    assert "\n5. Is the appliance safe to use?\nUnsafe\n" in text_of(pdf)


def test_a_long_answer_goes_on_over_lines_and_pages(call):
    found = " ".join(f"defect-{number}" for number in range(300))
    answers = {"Defects that were found": found}
    form = call.service.add_form(pdf=FormPdf(layout="list", answers=answers))

    lines = text_of(call.service.pdf(form["id"])).replace("\n", " ")

    assert found in lines


def test_an_update_may_change_answers_and_keeps_them_otherwise(call):
    form = call.service.add_form(pdf=FormPdf(answers=UNSAFE))

    call.service.update_form(form["id"])
    assert "Unsafe" in text_of(call.service.pdf(form["id"]))

    call.service.update_form(form["id"], pdf=FormPdf())
    assert "Unsafe" not in text_of(call.service.pdf(form["id"]))


def test_an_engineer_gives_the_answers_that_are_asked_for():
    engineer = Engineer(after=0, pdf=FormPdf(version=2, answers=UNSAFE))
    with FakeFieldService(engineer=engineer) as service:
        service.add_job(7)
        with pytest.raises(LookupError):
            service.complete_form(1, "Job Sign-off")
        (form,) = service.wait_for(lambda: service.forms, timeout=5)

        text = text_of(service.pdf(form["id"]))

    assert "Version 2" in text
    assert "Unsafe" in text


def test_the_command_chooses_layout_version_and_answers():
    options = ["--form-layout=list", "--form-version=2"]
    answer = "--answer=Is the appliance safe to use?=Unsafe"
    with running_fake(*options, answer, "--form=7:Gas Safety Record", "--form-after=0") as call:
        call("POST", "/properties/8/jobs")
        forms = []
        while len(forms) < 2:
            forms = call("GET", "/forms").json()["data"]
        for form in forms:
            pdf = call("GET", f"/forms/{form['id']}/pdf").content
            assert table_in(pdf) is None
            assert "Version 2" in text_of(pdf)
            assert "Unsafe" in text_of(pdf)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "html"}, "layout must be one of"),
        ({"version": 3}, "version must be one of"),
        ({"answers": {"Is it safe?": "No"}}, "no form has the question 'Is it safe?', only: Make"),
    ],
)
def test_what_no_form_has_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FormPdf(**arguments)


@pytest.mark.parametrize("details", [None, "x", {}])
def test_a_record_of_any_content_has_a_pdf(call, details):
    form = call.service.add_form(jobDetails=details, createdOnDateTime=7, formName="Été (✓)\\")

    assert "Été (?)\\" in text_of(call.service.pdf(form["id"]))
