"""The provider metadata matches Airflow's schema and the code."""

import json
from importlib import import_module, metadata
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from airflow.providers.common.compat.sdk import AirflowPlugin

import fsm_provider
from fsm_provider import links
from fsm_provider.assets.forms import completed_forms
from fsm_provider.provider_info import get_provider_info
from tests.capabilities import ASSETS

INFO = get_provider_info()
(CONNECTION_TYPE,) = INFO["connection-types"]


def import_string(dotted: str):
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def test_it_follows_airflows_schema():
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())

    jsonschema.validate(INFO, schema)


def test_the_entry_point_leads_to_it():
    ours = metadata.distribution(INFO["package-name"]).entry_points
    (entry_point,) = ours.select(group="apache_airflow_provider")

    assert entry_point.load() is get_provider_info
    assert metadata.version(INFO["package-name"]) == fsm_provider.__version__


INNER = {"__init__", "connection", "base", "writes", "export", "pdfs"}
"""Modules that no user imports."""


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "transfers", "triggers"])
def test_every_module_of_a_kind_is_listed(kind):
    folder = Path(fsm_provider.__file__).parent / kind
    names = {path.stem for path in folder.glob("*.py")} - INNER

    listed = set()
    for entry in INFO[kind]:
        listed |= set(entry.get("python-modules") or [entry["python-module"]])

    assert listed == {f"fsm_provider.{kind}.{name}" for name in names}


def test_every_link_is_listed():
    classes = []
    for name, member in vars(links).items():
        is_defined_here = getattr(member, "__module__", "") == links.__name__
        if is_defined_here and isinstance(member, type):
            classes.append(f"fsm_provider.links.{name}")

    assert INFO["extra-links"] == classes


def test_every_plugin_is_an_entry_point():
    """Airflow loads a third party's plugins from there, and once more what provider info names."""
    ours = metadata.distribution(INFO["package-name"]).entry_points
    (plugin,) = ours.select(group="airflow.plugins")

    assert plugin.value.replace(":", ".") == "fsm_provider.plugins.plugin.FsmPlugin"
    assert issubclass(plugin.load(), AirflowPlugin)
    assert "plugins" not in INFO


@ASSETS.needed
def test_every_asset_of_the_package_has_a_listed_scheme():
    (uris,) = INFO["asset-uris"]

    assert [completed_forms("any").uri.partition(":")[0]] == uris["schemes"]


def test_named_classes_exist():
    for dotted in (CONNECTION_TYPE["hook-class-name"], *INFO["extra-links"]):
        assert isinstance(import_string(dotted), type)
    for function in INFO["cli"]:
        assert callable(import_string(function))
    for uris in (*INFO["asset-uris"], *INFO["dataset-uris"]):
        assert callable(import_string(uris["handler"]))
        assert callable(import_string(uris["to_openlineage_converter"]))


def test_the_connection_form_begins_with_what_is_set_most():
    fields = CONNECTION_TYPE["conn-fields"]

    assert list(fields)[:2] == ["state_conn_id", "web_url"]
    assert list(fields)[-1] == "allow_http"
    for field in fields.values():
        assert field["label"]
        assert field["description"].endswith(".")
