"""The provider's metrics as StatsD receives them from a real Airflow."""

import re
from collections import defaultdict

import pytest
import requests

from fsm_provider.testing import FakeFieldService, faults
from tests.monitoring.queries import alert_queries, dashboard_queries
from tests.pages import DOCS
from tests.statsd import Metrics
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.measured import CONN_ID, PROPERTIES
from tests.system.form_events import add_forms, until_emitted
from tests.system.local_airflow import LocalAirflow

MONITORING = DOCS / "monitoring.md"
ASSET = {"connection": "fsm_watched", "asset": "watched_records"}
COUNTED_BY_OTHERS = {"fsm.webhooks.accepted", "fsm.webhooks.repeated"}
"""Of deliveries, which the tests of the receiver count."""


@pytest.fixture(scope="module")
def measured(airflow: LocalAirflow, service: FakeFieldService) -> None:
    """A run whose requests have each outcome."""
    airflow.add_connection(CONN_ID, service.connection(), max_requests_per_second=20)
    service.fail("POST", jobs_of("later"), faults.Status(429, retry_after=1))
    service.fail("POST", jobs_of("refused"), faults.Status(422))
    service.fail("POST", jobs_of("uncertain"), faults.Reset())

    run_id = airflow.trigger("measured")

    assert airflow.wait_for_run("measured", run_id) == "success"


def jobs_of(name: str) -> str:
    return f"/properties/{PROPERTIES[name]}/jobs"


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

    def are_forms_counted() -> bool:
        return metrics.count("fsm.watcher.forms", **ASSET) == emitted_before + 2

    def have_polls_failed() -> bool:
        return max(metrics.values("fsm.watcher.failures", **ASSET)) >= 2

    forms = add_forms(watched, 2)
    until_emitted(airflow, forms)
    watched.fail("GET", "/forms", faults.Status(503), every=True)
    wait_until(have_polls_failed, "polls fail")
    watched.clear_faults()

    wait_until(are_forms_counted, "the forms are counted")
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

    received = {name for name, *_ in metrics.received}
    ours = {name for name in received if name.startswith("fsm.")}

    assert ours | COUNTED_BY_OTHERS == documented


def test_the_queries_of_dashboard_and_alerts_name_metrics_that_are_sent_with_their_tags(
    metrics: Metrics,
) -> None:
    sent = exported_labels(metrics)
    for name in COUNTED_BY_OTHERS:
        sent[exported_name(name)] = {"connection", "object"}

    for query in [*dashboard_queries(), *alert_queries()]:
        names = set(re.findall(r"airflow_[a-z_]+", query))
        labels = labels_of(query)
        assert names <= sent.keys(), query
        for name in names:
            assert labels <= sent[name], query


def exported_labels(metrics: Metrics) -> dict[str, set[str]]:
    """Give the labels of each metric as ``statsd_exporter`` names it; a timing becomes two."""
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for name, tags, kind, _ in metrics.received:
        suffixes = ("_sum", "_count") if kind == "ms" else ("",)
        for suffix in suffixes:
            labels[f"{exported_name(name)}{suffix}"].update(label for label, _ in tags)
    return dict(labels)


def exported_name(name: str) -> str:
    return f"airflow_{name.replace('.', '_')}"


def labels_of(query: str) -> set[str]:
    """Give the labels that a query selects and groups by."""
    labels = set(re.findall(r"(\w+)(?:=~|!=|=)\"", query))
    for group in re.findall(r"by \(([^)]*)\)", query):
        labels.update(group.split(", "))
    return labels
