"""What is reported of reads and writes to Airflow's collector."""

from importlib import import_module
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import HookLineageCollector, ObjectStoragePath

from fsm_provider.storage import AtomicFiles, uri_for
from fsm_provider.transfers.forms import (
    FsmFormPdfsToObjectStorageOperator,
    FsmFormsToObjectStorageOperator,
)
from tests.unit.state_store import context_for

ON_DISK = Path("/srv/x").as_uri()


@pytest.fixture
def collector(monkeypatch):
    """Airflow's collector, as where a plugin reads it."""
    collecting = HookLineageCollector()
    home = import_module(HookLineageCollector.__module__)
    monkeypatch.setattr(home, "get_hook_lineage_collector", lambda: collecting)
    return collecting


def uris(assets):
    return sorted({asset.asset.uri for asset in assets})


def test_a_file_is_reported_under_the_name_that_it_keeps(storage, collector):
    with AtomicFiles(storage, context_for(None)) as files:
        files.store("a/b.csv", [b"x"])

    collected = collector.collected_assets
    assert uris(collected.inputs) == []
    assert uris(collected.outputs) == [uri_for(storage / "a" / "b.csv")]


def test_a_file_that_failed_is_not_reported(storage, collector):
    def chunks():
        yield b"x"
        raise KeyError

    with AtomicFiles(storage, context_for(None)) as files, pytest.raises(KeyError):
        files.store("b.csv", chunks())

    assert uris(collector.collected_assets.outputs) == []


def test_a_transfer_reports_the_forms_and_its_files(service, connect, tmp_path, collector):
    connect(service)
    service.add_form()
    operator = FsmFormPdfsToObjectStorageOperator(
        task_id="pdfs", forms=[5001], destination=str(tmp_path)
    )

    (path,) = operator.execute(context_for(None))["paths"]
    operator.execute(context_for(None))

    collected = collector.collected_assets
    assert uris(collected.inputs) == ["fsm://fsm_default/forms"]
    assert uris(collected.outputs) == [uri_for(ObjectStoragePath(path))]


def test_an_export_reports_its_file(service, connect, tmp_path, collector):
    connect(service)
    service.add_form()
    operator = FsmFormsToObjectStorageOperator(
        task_id="export", destination=f"{tmp_path}/a/forms.jsonl"
    )

    operator.execute(context_for(None))

    collected = collector.collected_assets
    assert uris(collected.inputs) == ["fsm://fsm_default/forms"]
    assert uris(collected.outputs) == [f"file://{tmp_path}/a/forms.jsonl"]


@pytest.mark.parametrize(
    ("url", "uri"),
    [("/srv/x", ON_DISK), (ON_DISK, ON_DISK), ("s3://bucket/x", "s3://bucket/x")],
)
def test_a_uri_has_a_scheme(url, uri):
    assert uri_for(ObjectStoragePath(url)) == uri
