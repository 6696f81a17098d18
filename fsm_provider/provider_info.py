"""Provider metadata for Airflow: the entry point ``apache_airflow_provider``."""

from typing import Any

_INTEGRATION = "Field-service management API"
_URIS = {
    "schemes": ["fsm"],
    "handler": "fsm_provider.storage.sanitize_uri",
    "to_openlineage_converter": "fsm_provider.storage.convert_asset_to_openlineage",
}


def get_provider_info() -> dict[str, Any]:
    """Return the metadata, as in Airflow's ``provider_info.schema.json``."""
    from fsm_provider.api.settings import Settings

    return {
        "package-name": "airflow-provider-fsm",
        "name": "Field-service management",
        "description": (
            "Jobs, completed forms, asset fields and webhooks of a field-service management API."
        ),
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "connection-types": [
            {
                "connection-type": "fsm",
                "hook-class-name": "fsm_provider.hooks.fsm.FsmHook",
                "hook-name": "Field-service management",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema", "extra"],
                    "relabeling": {"host": "Base URL", "login": "Account", "password": "API token"},
                    "placeholders": {"host": "https://api.example.com/v1"},
                },
                "conn-fields": Settings.form_fields(),
            }
        ],
        "config": {
            "fsm": {
                "description": "The field-service management provider.",
                "options": {
                    "airflow_name": {
                        "description": (
                            "A name of this Airflow, the same on all workers. Needed if several "
                            "Airflows have DAGs with the same ids and share the database of a "
                            "ledger."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "north",
                        "default": "",
                    }
                },
            }
        },
        "hooks": _modules("hooks", "fsm"),
        "operators": _modules("operators", "assets", "forms", "generic", "jobs", "webhooks"),
        "transfers": [_transfer("assets"), _transfer("forms")],
        "sensors": _modules("sensors", "forms", "records"),
        "triggers": _modules("triggers", "forms"),
        "asset-uris": [_URIS],
        "dataset-uris": [_URIS],  # Airflow 2
        "cli": ["fsm_provider.commands.cli.airflow_commands"],
        "extra-links": ["fsm_provider.links.FsmJobLink", "fsm_provider.links.FsmUncertainLink"],
    }


def _transfer(name: str) -> dict[str, Any]:
    return {
        "source-integration-name": _INTEGRATION,
        "target-integration-name": _INTEGRATION,
        "python-module": f"fsm_provider.transfers.{name}",
    }


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"fsm_provider.{package}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]
