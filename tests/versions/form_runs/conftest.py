import json

import pytest


@pytest.fixture
def start(fsm_dags, run_with_completed_forms, tmp_path, monkeypatch):
    """Runs a DAG, and returns what its tasks have read."""
    read = tmp_path / "read.jsonl"
    monkeypatch.setenv("READ", str(read))

    def start(dag_id, **arguments):
        read.write_text("")
        run = run_with_completed_forms(fsm_dags[dag_id], **arguments)
        assert run.state == "success"
        lines = read.read_text().splitlines()
        return [json.loads(line) for line in lines]

    return start


@pytest.fixture
def start_ids(start):
    """Runs a DAG, and returns the identifiers of the forms that its tasks have read."""

    def start_ids(dag_id):
        forms = start(dag_id)
        return sorted(form["id"] for form in forms)

    return start_ids
