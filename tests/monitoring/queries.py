"""The queries of the files in docs/monitoring."""

import json
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"


def dashboard_queries() -> list[str]:
    """Give those of the panels."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    queries: list[str] = []
    for panel in dashboard["panels"]:
        targets = panel.get("targets", ())
        queries += [target["expr"] for target in targets]
    return queries


def alert_queries() -> list[str]:
    """Give those of the alerts."""
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    queries: list[str] = []
    for group in alerts["groups"]:
        queries += [rule["expr"] for rule in group["rules"]]
    return queries
