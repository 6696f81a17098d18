import pytest


def test_each_warning_notice_gets_a_job(fake_field_service, fsm_dags, run_with_completed_forms):
    notice = fake_field_service.add_form(property_id=7, form_name="Warning Notice")
    fake_field_service.add_form(property_id=8, form_name="Gas Safety Record")
    run = run_with_completed_forms(fsm_dags["remedial_work"])
    assert run.state == "success"
    [job] = fake_field_service.jobs
    assert (job["propertyID"], job["customerReference"]) == (7, f"notice {notice['id']}")


def test_other_forms_do_not_start_it(fake_field_service, fsm_dags, run_with_completed_forms):
    fake_field_service.add_form(form_name="Gas Safety Record")
    with pytest.raises(AssertionError, match="'warning_notices' has no new form"):
        run_with_completed_forms(fsm_dags["remedial_work"])
