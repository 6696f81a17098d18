import pytest


@pytest.mark.parametrize("dag_id", ["gas_safety_forms", "file_gas_safety_records"])
def test_an_example_succeeds(fake_field_service, fsm_dags, run_with_completed_forms, dag_id):
    for name in ("Warning Notice", "Gas Safety Record"):
        fake_field_service.add_form(form_name=name)

    assert run_with_completed_forms(fsm_dags[dag_id]).state == "success"
