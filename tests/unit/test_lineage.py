"""What is reported of reads and writes to Airflow's collector."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.assets import Asset
from airflow.providers.common.compat.sdk import (
    BaseOperator,
    HookLineageCollector,
    ObjectStoragePath,
)
from airflow.providers.openlineage.extractors.manager import ExtractorManager

from fsm_provider.storage import AtomicFiles, uri_for, uri_for_records
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
    # Where Airflow before 3.2 keeps it: OpenLineage looks whether there is any.
    monkeypatch.setattr(home, "_hook_lineage_collector", collecting, raising=False)
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


def lineage_of(operator):
    """Return what OpenLineage's own provider reports of a task that has ended."""
    run = SimpleNamespace(run_id="a run")
    lineage = ExtractorManager().extract_metadata(run, operator, "success", SimpleNamespace())
    inputs = [(dataset.namespace, dataset.name) for dataset in lineage.inputs]
    outputs = [(dataset.namespace, dataset.name) for dataset in lineage.outputs]
    return inputs, outputs


def test_openlineage_has_the_service_as_input_of_an_export(service, connect, tmp_path, collector):
    connect(service)
    service.add_form()
    file = f"{tmp_path}/forms.jsonl"
    operator = FsmFormsToObjectStorageOperator(task_id="export", destination=file)

    operator.execute(context_for(None))

    assert lineage_of(operator) == ([("fsm://fsm_default", "forms")], [("file", file)])


def test_openlineage_reads_inlets_and_outlets(collector):
    events = Asset(uri_for_records("south/1", "jobs"))
    forms = Asset(f"{uri_for_records('fsm_default', 'forms')}/new%20forms")
    operator = BaseOperator(task_id="any", inlets=[events], outlets=[forms])

    inputs, outputs = lineage_of(operator)

    assert inputs == [("fsm://south%2F1", "jobs")]
    assert outputs == [("fsm://fsm_default", "forms/new%20forms")]


@pytest.mark.parametrize(
    ("url", "uri"),
    [("/srv/x", ON_DISK), (ON_DISK, ON_DISK), ("s3://bucket/x", "s3://bucket/x")],
)
def test_a_uri_has_a_scheme(url, uri):
    assert uri_for(ObjectStoragePath(url)) == uri
