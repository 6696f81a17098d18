"""The queries of the files in docs/monitoring."""

import json
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"


def dashboard_queries() -> list[str]:
    """Give those of the panels."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def alert_queries() -> list[str]:
    """Give those of the alerts."""
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]
