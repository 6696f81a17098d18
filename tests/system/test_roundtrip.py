"""The example DAG on a real Airflow, as it is and with its sensor in the other modes."""

from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from tests.system.examples import copy
from tests.system.local_airflow import LocalAirflow


class NothingAtFirst:
    """The first listing of a job's forms has none, even where the engineer is faster than the sensor."""

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


@pytest.mark.parametrize("mode", ["deferrable", "poke", "reschedule"])
def test_a_work_order_becomes_a_job_and_its_forms_close_it(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, mode: str
) -> None:
    dag_id = "work_order_roundtrip"
    if mode != "deferrable":
        dag_id = f"work_order_roundtrip_{mode}"
        changed = {"deferrable=True": f"mode={mode!r}"}
        copy(airflow, dags_folder, "work_order_roundtrip", dag_id, by_hand=False, **changed)
    waiting_states = {"deferrable": "deferred", "poke": "running", "reschedule": "up_for_reschedule"}
    seen: set[tuple[str, str | None]] = set()

    service.fail("GET", "/forms", NothingAtFirst(), every=True)
    run_id = airflow.trigger(dag_id, {"purchase_order": f"PO-{mode}"})
    state = airflow.wait_for_run(dag_id, run_id, lambda *step: seen.add(step))
    service.clear_faults()

    assert state == "success", airflow.task_log(dag_id, run_id, "wait_for_forms")
    assert ("wait_for_forms", waiting_states[mode]) in seen
    (job,) = [job for job in service.jobs if job["customerReference"] == f"PO-{mode}"]
    assert airflow.xcom(dag_id, run_id, "create_job") == {**job, **_as_we_write_times(job)}
    assert airflow.xcom(dag_id, run_id, "report") == {
        "purchaseOrder": f"PO-{mode}",
        "jobID": job["id"],
        "forms": ["Gas Safety Record", "Job Sign-off"],
    }
    assert airflow.extra_links(dag_id, run_id, "create_job") == {"Job": job["links"]["self"]}
    assert all("formPDFURL" not in form for form in airflow.xcom(dag_id, run_id, "wait_for_forms"))


def _as_we_write_times(job: dict) -> dict:
    from fsm_provider.api import Job

    return Job.model_validate(job).as_json()
