import pytest


def test_both_assets_are_needed(start_ids, fake_field_service):
    record = fake_field_service.add_form()["id"]
    fake_field_service.add_form(form_name="Warning Notice", property_id=9)
    with pytest.raises(
        AssertionError, match="DAG 'on_both' would not start: the asset 'notices' has no "
    ):
        start_ids("on_both")

    notice = fake_field_service.add_form(form_name="Warning Notice", property_id=8)["id"]

    assert start_ids("on_both") == [record, notice]


def test_either_asset_is_enough(start_ids, fake_field_service):
    notice = fake_field_service.add_form(form_name="Warning Notice", property_id=7)["id"]

    assert start_ids("on_either") == [notice]


def test_none_of_either_is_too_little(start, fake_field_service):
    with pytest.raises(
        AssertionError, match=r"'records' has no new form\..*listed: none; .*'notices'"
    ):
        start("on_either")


def test_an_asset_is_enough_beside_an_alias(start_ids, fake_field_service):
    form = fake_field_service.add_form()["id"]

    assert start_ids("on_records_or_alias") == [form]


def test_another_asset_has_the_event_it_is_given(start, fake_field_service):
    fake_field_service.add_form()
    with pytest.raises(
        AssertionError, match="would not start: other_events has none of the asset 'rates'"
    ):
        start("on_records_and_rates")

    assert start("on_records_and_rates", other_events={"rates": {"rows": 3}}) == [{"rows": 3}]


@pytest.mark.parametrize("name", ["records", "rate"])
def test_an_event_of_no_other_asset_is_refused(start, fake_field_service, name):
    with pytest.raises(
        ValueError, match=rf"{name}: the DAG 'on_records_and_rates' .* other assets: rates"
    ):
        start("on_records_and_rates", other_events={name: {}})


@pytest.mark.parametrize(("dag_id", "assets"), [("by_hand", "none"), ("on_rates", "rates")])
def test_a_dag_that_no_form_starts_is_refused(start, dag_id, assets):
    with pytest.raises(
        ValueError, match=f"'{dag_id}' has no asset of completed_forms.*Its assets: {assets}"
    ):
        start(dag_id)
