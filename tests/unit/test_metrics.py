"""What a job's creation owes to the metrics: nothing. What they are is tested on a real Airflow."""

import os
import subprocess
import sys
from pathlib import Path

from fsm_provider.testing import FakeFieldService
from tests.processes import inherited_environment
from tests.statsd import statsd

CREATE = """
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.metrics import AirflowMetrics

print(FsmHook().create_job(7, {"customerReference": "PO-1"}).id)
AirflowMetrics(asset="a|b:c,d=e\\n").incr("watcher.polls")
"""
BROKEN = """
from statsd import StatsClient

class Broken(StatsClient):
    def incr(self, *args, **kwargs):
        raise OSError("no buffer space available")
"""


def created_with(service: FakeFieldService, home: Path, **settings: str) -> str:
    """Create a job in a process of its own; return what it prints."""
    environment = {
        **inherited_environment(),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(),
        "PYTHONPATH": os.pathsep.join([str(home), str(Path.cwd())]),
        **settings,
    }
    command = [sys.executable, "-c", CREATE]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_metric_that_cannot_be_sent_leaves_the_job_created(service, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    with statsd() as metrics:
        client = {"AIRFLOW__METRICS__STATSD_CUSTOM_CLIENT_PATH": "broken.Broken"}

        printed = created_with(service, tmp_path, **metrics.env, **client)

    assert printed.splitlines()[-1] == str(service.jobs[0]["id"])
    assert len(service.jobs) == 1


def test_metrics_have_the_connection_and_no_secret(service, tmp_path):
    with statsd() as metrics:
        created_with(service, tmp_path, **metrics.env)

    tags = {"connection": "fsm_default", "method": "POST", "status": "201"}
    assert metrics.values("fsm.requests", **tags) == [1.0]
    assert metrics.values("fsm.watcher.polls", asset="a_b_c_d_e_") == [1.0]
    assert service.settings.token.encode() not in metrics.raw
