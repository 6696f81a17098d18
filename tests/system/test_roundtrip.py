"""The example DAG on a real Airflow."""

from typing import Any

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from tests.system.jobs import jobs_with_reference
from tests.system.local_airflow import LocalAirflow


class NothingAtFirst:
    """Lists no form of a job at first, even where the engineer is faster than the sensor."""

    def __init__(self) -> None:
        self._listed: set[str] = set()

    async def play(self, exchange: Exchange) -> None:
        job = exchange.request.query_params.get("jobID")
        if job is None or job in self._listed:
            await exchange.respond(await exchange.handle())
            return
        self._listed.add(job)
        nothing = {"pagination": {"hasMore": False}, "data": []}
        await faults.Status(200, body=nothing).play(exchange)


def test_a_work_order_becomes_a_job_and_its_forms_close_it(
    airflow: LocalAirflow, service: FakeFieldService
) -> None:
    dag_id = "work_order_roundtrip"
    service.fail("GET", "/forms", NothingAtFirst(), every=True)

    run_id = airflow.trigger(dag_id, {"purchase_order": "PO-TRIP"})
    followed = list(airflow.follow(dag_id, run_id))
    service.clear_faults()

    final_state, _ = followed[-1]
    assert final_state == "success", airflow.task_log(dag_id, run_id, "wait_for_forms")
    assert "deferred" in [states.get("wait_for_forms") for _, states in followed]
    (job,) = jobs_with_reference(service, "PO-TRIP")
    created = airflow.xcom(dag_id, run_id, "create_job")
    assert created["status"] == "Open"
    assert job["status"] == "Completed"
    assert created == {
        **job,
        **_with_our_times(job),
        # These have changed since.
        "status": created["status"],
        "completed": created["completed"],
        "lastUpdatedOnDateTime": created["lastUpdatedOnDateTime"],
    }
    assert airflow.xcom(dag_id, run_id, "report") == {
        "purchaseOrder": "PO-TRIP",
        "jobID": job["id"],
        "forms": ["Gas Safety Record", "Job Sign-off"],
    }
    links = airflow.extra_links(dag_id, run_id, "create_job")
    assert links["Job"] == job["links"]["self"]
    assert links["Uncertain"].endswith("fsm-page/?conn_id=fsm_default")
    for form in airflow.xcom(dag_id, run_id, "wait_for_forms"):
        assert "formPDFURL" not in form


def _with_our_times(job: dict[str, Any]) -> dict[str, Any]:
    """Give a job with its times as this package writes them."""
    from fsm_provider.api import Job

    return Job.model_validate(job).as_json()
