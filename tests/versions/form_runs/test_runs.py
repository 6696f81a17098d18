from datetime import UTC, datetime

import pytest
from airflow.models.asset import AssetEvent
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

from fsm_provider.api import FsmForbiddenError
from fsm_provider.testing import faults


def events_of(run):
    with create_session() as session:
        stored = session.scalars(select(DagRun).filter_by(id=run.id)).one()
        return list(stored.consumed_asset_events)


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_has_the_forms_of_its_own_test(start_ids, fake_field_service, count):
    with create_session() as session:
        assert session.scalars(select(AssetEvent)).all() == []
    forms = [fake_field_service.add_form()["id"] for _ in range(count)]
    fake_field_service.add_form(form_name="Warning Notice")

    assert start_ids("on_records") == forms


def test_a_form_is_read_as_the_service_has_it(start, fake_field_service):
    name = "Gäste 'and' \"more\" \\ %s {{ ds }} </script> 🔥 line\nend"
    form = fake_field_service.add_form(job_id=9, property_id=7, form_name=name)

    (read,) = start("on_single")

    assert read["formName"] == name
    assert read["jobID"] == 9
    assert read["id"] == form["id"]
    assert read["propertyID"] == form["propertyID"]


def test_each_run_has_what_is_new_since_the_last(fsm_dags, start_ids, fake_field_service):
    first = fake_field_service.add_form()["id"]
    assert start_ids("on_records") == [first]

    second = fake_field_service.add_form()["id"]
    assert start_ids("on_records") == [second]

    fake_field_service.update_form(first)
    assert start_ids("on_records") == [first]

    listed = f"listed: {first} 'Gas Safety Record', {second} 'Gas Safety Record'"
    with pytest.raises(AssertionError, match=f"'records' has no new form.*{listed}"):
        start_ids("on_records")
    assert events_of(fsm_dags["on_records"].test()) == []


def test_each_dag_of_an_asset_has_its_forms(start_ids, fake_field_service):
    form = fake_field_service.add_form()["id"]

    assert start_ids("on_records") == [form]
    assert start_ids("on_records_or_time") == [form]


def test_a_run_has_the_forms_of_one_event(start_ids, fake_field_service):
    forms = [fake_field_service.add_form()["id"] for _ in range(2)]

    first = start_ids("on_single")
    second = start_ids("on_single")

    assert sorted(first + second) == forms


def test_a_run_is_one_that_an_asset_starts(
    fsm_dags, run_with_completed_forms, start, fake_field_service
):
    forms = [fake_field_service.add_form()["id"] for _ in range(2)]

    run = run_with_completed_forms(fsm_dags["mapped"], run_conf={"dry_run": True})

    assert run.state == "success"
    assert run.run_type == "asset_triggered"
    assert run.conf == {"dry_run": True}
    assert run.run_id.startswith("asset_triggered__")
    assert run.logical_date is None
    assert run.data_interval_start is None
    instances = run.get_task_instances()
    assert sorted(instance.map_index for instance in instances) == [-1, 0, 1]
    (event,) = events_of(run)
    references = event.extra["payload"]["forms"]
    assert [reference["id"] for reference in references] == forms


def test_a_form_from_before_the_start_is_not_new(start, fake_field_service):
    fake_field_service.add_form(created=datetime(2025, 12, 31, tzinfo=UTC))

    with pytest.raises(AssertionError, match="'recent' has no new form"):
        start("on_recent")


def test_a_poll_that_fails_is_an_error(start, fake_field_service):
    fake_field_service.fail("GET", "/forms", faults.Status(403))

    with pytest.raises(FsmForbiddenError):
        start("on_records")
