import pytest


def test_both_assets_are_needed(start_ids, fake_field_service):
    record = fake_field_service.add_form()["id"]
    fake_field_service.add_form(form_name="Warning Notice", property_id=9)
    refusal = "DAG 'on_both' would not start: the asset 'notices' has no "
    with pytest.raises(AssertionError, match=refusal):
        start_ids("on_both")

    notice = fake_field_service.add_form(form_name="Warning Notice", property_id=8)["id"]

    assert start_ids("on_both") == [record, notice]


def test_either_asset_is_enough(start_ids, fake_field_service):
    notice = fake_field_service.add_form(form_name="Warning Notice", property_id=7)["id"]

    assert start_ids("on_either") == [notice]


def test_none_of_either_is_too_little(start, fake_field_service):
    refusal = r"'records' has no new form\..*listed: none; .*'notices'"

    with pytest.raises(AssertionError, match=refusal):
        start("on_either")


def test_an_asset_is_enough_beside_an_alias(start_ids, fake_field_service):
    form = fake_field_service.add_form()["id"]

    assert start_ids("on_records_or_alias") == [form]


def test_another_asset_has_the_event_it_is_given(start, fake_field_service):
    fake_field_service.add_form()
    refusal = "would not start: other_events has none of the asset 'rates'"
    with pytest.raises(AssertionError, match=refusal):
        start("on_records_and_rates")

    read = start("on_records_and_rates", other_events={"rates": {"rows": 3}})

    assert read == [{"rows": 3}]


@pytest.mark.parametrize("name", ["records", "rate"])
def test_an_event_of_no_other_asset_is_refused(start, fake_field_service, name):
    refusal = rf"{name}: the DAG 'on_records_and_rates' .* other assets: rates"

    with pytest.raises(ValueError, match=refusal):
        start("on_records_and_rates", other_events={name: {}})


@pytest.mark.parametrize(("dag_id", "assets"), [("by_hand", "none"), ("on_rates", "rates")])
def test_a_dag_that_no_form_starts_is_refused(start, dag_id, assets):
    refusal = f"'{dag_id}' has no asset of completed_forms.*Its assets: {assets}"

    with pytest.raises(ValueError, match=refusal):
        start(dag_id)
