"""What a job's creation owes to the metrics: nothing. What they are is tested on a real Airflow."""

import os
import subprocess
import sys
from pathlib import Path

from fsm_provider.testing import FakeFieldService, faults
from tests.processes import inherited_environment
from tests.statsd import statsd

CREATE = """
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.metrics import AirflowMetrics

print(FsmHook().create_job(7, {"customerReference": "PO-1"}).id)
AirflowMetrics({"asset": "a|b:c,d=e\\nZo\u00eb"}).incr("watcher.polls")
"""
BROKEN = """
from statsd import StatsClient

class Broken(StatsClient):
    def incr(self, *args, **kwargs):
        raise OSError("no buffer space available")
"""


CREATE_MANY = """
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from tests.unit.state_store import MemoryStateStore, context_for

jobs = [{"property_id": number, "job": {"customerReference": str(number)}} for number in (1, 2, 3)]
for options in ({"max_jobs": 2}, {"dry_run": True}, {"max_concurrency": 1}):
    operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, fail_on="any", **options)
    try:
        operator.execute(context_for(MemoryStateStore()))
    except Exception as error:
        print(error)
"""


def created_with(service: FakeFieldService, home: Path, program: str, **settings: str) -> str:
    """Create jobs in a process of their own; return what it prints."""
    environment = {
        **inherited_environment(),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(),
        "PYTHONPATH": os.pathsep.join([str(home), str(Path.cwd())]),
        **settings,
    }
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_a_metric_that_cannot_be_sent_leaves_the_job_created(service, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    with statsd() as metrics:
        client = {"AIRFLOW__METRICS__STATSD_CUSTOM_CLIENT_PATH": "broken.Broken"}

        printed = created_with(service, tmp_path, CREATE, **metrics.env, **client)

    assert printed.splitlines()[-1] == str(service.jobs[0]["id"])
    assert len(service.jobs) == 1


def test_each_job_is_counted_unless_the_input_is_refused_with_its_connection_and_no_secret(
    service, tmp_path
):
    service.fail("POST", "/properties/1/jobs", faults.Status(400))
    with statsd() as metrics:
        created_with(service, tmp_path, CREATE_MANY + CREATE, **metrics.env)

    tags = {"connection": "fsm_default", "method": "POST"}
    assert sum(metrics.values("fsm.requests", **tags, status="201")) == 3
    expected = {
        "created": 2,
        "existing": 0,
        "rejected": 1,
        "uncertain": 0,
        "not_created": 0,
        "valid": 0,
    }
    for outcome, count in expected.items():
        values = metrics.values("fsm.writes", connection="fsm_default", outcome=outcome)
        assert sum(values) == count
    assert metrics.values("fsm.watcher.polls", asset="a_b_c_d_e_Zo_") == [1.0]
    assert service.settings.token.encode() not in metrics.raw
