import pytest
from airflow.models.asset import AssetEvent
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

from fsm_provider.api import FsmForbiddenError
from fsm_provider.testing import faults


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

    assert (read["formName"], read["jobID"]) == (name, 9)
    assert (read["id"], read["propertyID"]) == (form["id"], form["propertyID"])


def test_another_run_has_what_is_new_since(start_ids, fake_field_service):
    first = fake_field_service.add_form()["id"]
    assert start_ids("on_records") == [first]
    second = fake_field_service.add_form()["id"]
    assert start_ids("on_records") == [second]
    fake_field_service.update_form(first)
    assert start_ids("on_records") == [first]

    with pytest.raises(
        AssertionError, match=f"has no new form.*listed: {first} 'Gas Safety Record', {second}"
    ):
        start_ids("on_records")


def test_each_dag_of_an_asset_has_its_forms(start_ids, fake_field_service):
    form = fake_field_service.add_form()["id"]

    assert start_ids("on_records") == start_ids("on_records_or_time") == [form]


def test_each_event_has_a_run(start_ids, fake_field_service):
    forms = [fake_field_service.add_form()["id"] for _ in range(3)]

    runs = [start_ids("on_single") for _ in forms]

    assert sorted(runs) == [[form] for form in forms]


def test_runs_are_those_of_an_asset(fsm_dags, run_with_completed_forms, start, fake_field_service):
    fake_field_service.add_form()
    first = run_with_completed_forms(fsm_dags["on_records"], run_conf={"dry_run": True})
    fake_field_service.add_form()
    second = run_with_completed_forms(fsm_dags["on_records"])

    for run in (first, second):
        assert run.run_type == "asset_triggered"
        assert run.run_id.startswith("asset_triggered__")
        assert run.logical_date is run.data_interval_start is None
        assert {one.state for one in run.get_task_instances()} == {"success"}
    assert first.run_id != second.run_id
    assert first.conf == {"dry_run": True}


def test_a_run_by_hand_has_no_events(fsm_dags, start, fake_field_service):
    fake_field_service.add_form()
    start("on_records")

    run = fsm_dags["on_records"].test()

    assert run.run_type == "manual"
    with create_session() as session:
        events = session.scalars(select(DagRun).where(DagRun.id == run.id)).one().consumed_asset_events
    assert events == []


def test_a_poll_that_fails_is_an_error(start, fake_field_service):
    fake_field_service.fail("GET", "/forms", faults.Status(403))

    with pytest.raises(FsmForbiddenError):
        start("on_records")
