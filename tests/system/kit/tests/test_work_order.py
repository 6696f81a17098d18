import pytest

from fsm_provider.testing import Engineer, faults


@pytest.mark.fake_field_service(engineer=Engineer(after=0.5))
def test_a_work_order_waits_for_its_form(fake_field_service, fsm_dags):
    run = fsm_dags["work_order"].test()
    assert run.state == "success"
    assert [job["customerReference"] for job in fake_field_service.jobs] == ["PO-4711"]


def test_a_job_is_not_ordered_twice(fake_field_service, fsm_dags):
    fake_field_service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
    run = fsm_dags["work_order"].test()
    assert run.state == "failed"
    assert len(fake_field_service.jobs) == 1
