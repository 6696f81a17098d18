"""The provider's metrics on a real Airflow, as StatsD receives them from tasks, triggerer and API
server.
"""

import re
from pathlib import Path

import pytest
import requests

from fsm_provider.testing import FakeFieldService, faults
from tests.monitoring.queries import alert_queries, dashboard_queries
from tests.statsd import Metrics
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.measured import CONN_ID, PROPERTIES
from tests.system.form_events import add, until_emitted
from tests.system.local_airflow import LocalAirflow

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring.md"
ASSET = {"connection": "fsm_watched", "asset": "watched_records"}


@pytest.fixture(scope="module")
def measured(airflow: LocalAirflow, service: FakeFieldService) -> None:
    """A run whose requests have each outcome."""
    airflow.add_connection(CONN_ID, service.connection(), max_requests_per_second=20)
    jobs = {name: f"/properties/{property_id}/jobs" for name, property_id in PROPERTIES.items()}
    service.fail("POST", jobs["later"], faults.Status(429, retry_after=1))
    service.fail("POST", jobs["refused"], faults.Status(422))
    service.fail("POST", jobs["uncertain"], faults.Reset())
    run_id = airflow.trigger("measured")
    assert airflow.wait_for_run("measured", run_id) == "success"


@pytest.mark.usefixtures("measured")
def test_deferred_waits_are_measured(metrics: Metrics) -> None:
    assert set(metrics.values("fsm.waits", connection=CONN_ID)) == {1.0, 0.0}
    assert metrics.count("fsm.waits.polls", connection=CONN_ID, result="complete") >= 1
    assert max(metrics.values("fsm.waits.poll_age", connection=CONN_ID)) < PATIENCE
    assert set(metrics.values("fsm.waits.poll_interval", connection=CONN_ID)) == {1.0, 0.0}
    assert set(metrics.values("fsm.waits.failures", connection=CONN_ID)) == {0.0}


def test_a_watcher_is_measured(
    airflow: LocalAirflow, watched: FakeFieldService, metrics: Metrics
) -> None:
    emitted_before = metrics.count("fsm.watcher.forms", **ASSET)
    forms = add(watched, 2)
    until_emitted(airflow, forms)
    watched.fail("GET", "/forms", faults.Status(503), every=True)
    wait_until(lambda: max(metrics.values("fsm.watcher.failures", **ASSET)) >= 2, "polls fail")
    watched.clear_faults()

    wait_until(
        lambda: metrics.count("fsm.watcher.forms", **ASSET) == emitted_before + 2,
        "the forms are counted",
    )
    assert metrics.count("fsm.watcher.polls", result="complete", **ASSET) > 3
    assert metrics.count("fsm.watcher.polls", result="failed", **ASSET) >= 2
    assert 1 < max(metrics.values("fsm.watcher.poll_age", **ASSET)) < PATIENCE
    assert set(metrics.values("fsm.watcher.poll_interval", **ASSET)) == {1.0}
    assert min(metrics.values("fsm.watcher.backlog", **ASSET)) == 0


def test_a_delivery_that_is_refused_is_counted(airflow: LocalAirflow, metrics: Metrics) -> None:
    requests.post(f"{airflow.base_url}/fsm/webhooks/nobody/jobs/x", json={}, timeout=30)

    wait_until(lambda: metrics.count("fsm.webhooks.refused", connection="-"), "it is counted")


def test_the_page_has_all_metrics(metrics: Metrics) -> None:
    """And no other. The receiver's own tests count what it accepts."""
    documented = set(re.findall(r"^\| `(fsm[.a-z_]+)`", MONITORING.read_text(), re.MULTILINE))

    seen = {name for name, *_ in metrics.received if name.startswith("fsm.")}

    assert seen | {"fsm.webhooks.accepted", "fsm.webhooks.repeated"} == documented


def test_the_queries_of_dashboard_and_alerts_name_metrics_that_are_sent_with_their_tags(
    metrics: Metrics,
) -> None:
    """As ``statsd_exporter`` names them: with underscores, and a timing as ``_sum`` and ``_count``."""
    sent: dict[str, set[str]] = {}
    for name, tags, kind, _ in metrics.received:
        suffixes = ("_sum", "_count") if kind == "ms" else ("",)
        for suffix in suffixes:
            sent.setdefault(f"airflow_{name.replace('.', '_')}{suffix}", set()).update(
                tag for tag, _ in tags
            )
    for taken in ("accepted", "repeated"):  # of which the receiver's own tests count
        sent[f"airflow_fsm_webhooks_{taken}"] = {"connection", "object"}

    for query in [*dashboard_queries(), *alert_queries()]:
        named = set(re.findall(r"airflow_[a-z_]+", query))
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)\"", query))
        labels |= {
            label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
        }
        assert named <= sent.keys(), query
        assert all(labels <= sent[name] for name in named), query
