"""A DAG file is parsed often, so its imports from this package are light."""

import json
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from importlib import import_module

import pytest
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from tests.capabilities import ASSETS, LIGHT_PARSING, RETRY_POLICIES, TASK_SDK

MODULES = [
    "fsm_provider.assets.forms",
    "fsm_provider.operators.assets",
    "fsm_provider.operators.forms",
    "fsm_provider.operators.generic",
    "fsm_provider.operators.jobs",
    "fsm_provider.operators.webhooks",
    "fsm_provider.plugins.webhooks",
    "fsm_provider.sensors.forms",
    "fsm_provider.sensors.records",
    "fsm_provider.transfers.forms",
    "fsm_provider.transfers.assets",
    "fsm_provider.triggers.forms",
]


HIDE_AMAZON = "import sys; sys.modules['airflow.providers.amazon.aws'] = None\n"
"""Airflow's Amazon provider, which the tests' S3 needs, loads requests with the first asset."""


WATCHER = (
    'fsm_provider.assets.forms.completed_forms("forms", form_names="x")' if ASSETS.is_there else ""
)


def python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", HIDE_AMAZON + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip().splitlines()[-1]


@LIGHT_PARSING.needed
def test_a_dag_file_loads_no_http_library():
    loaded = python(f"""
        import sys, {", ".join(MODULES)}
        from fsm_provider.operators.jobs import FsmCreateJobOperator, JobOutcome
        from fsm_provider.sensors.forms import FsmFormSensor
        from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
        from fsm_provider.api import FsmError, JobCreate, WebhookCreate
        FsmCreateJobOperator(task_id="create", property_id=7, job={{"notes": "x"}})
        {WATCHER}
        FsmFormSensor(task_id="wait", job_id=7, since="2026-01-01", form_names=["x"])
        fsm_provider.sensors.records.FsmRecordSensor(task_id="record", path="/jobs", predicate=bool)
        FsmFormPdfsToObjectStorageOperator(task_id="pdfs", forms=[7], destination="s3://b/forms")
        ours = ("fsm_provider.hooks.fsm", "fsm_provider.api.client")
        heavy = ("requests", "urllib3", "aiohttp", *ours)
        print([name for name in heavy if name in sys.modules])
    """)

    assert loaded == "[]"


@LIGHT_PARSING.needed
def test_a_hook_that_is_not_used_loads_no_http_library():
    loaded = python("""
        import sys
        from fsm_provider.hooks.fsm import FsmHook
        FsmHook()
        print([name for name in ("requests", "urllib3") if name in sys.modules])
    """)

    assert loaded == "[]"


@TASK_SDK.needed
def test_each_module_adds_few_to_what_airflow_loads():
    added = json.loads(
        python(f"""
            import importlib, json, os, sys, airflow.sdk
            before, added = set(sys.modules), {{}}
            for name in {MODULES}:
                ours, theirs = os.pipe()
                if not os.fork():
                    importlib.import_module(name)
                    os.write(theirs, str(len(set(sys.modules) - before)).encode())
                    os._exit(0)
                os.wait()
                added[name] = int(os.read(ours, 10))
            print(json.dumps(added))
        """)
    )

    assert {name: count for name, count in added.items() if not 0 < count <= 40} == {}


@TASK_SDK.needed
def test_the_plugin_that_every_component_imports_loads_no_server():
    loaded = python("""
        import sys, airflow.sdk
        before = set(sys.modules)
        import fsm_provider.plugins.plugin
        added = set(sys.modules) - before
        watched = ("fsm_provider.", "fastapi", "pydantic")
        print(" ".join(sorted(name for name in added if name.startswith(watched))))
    """)

    assert loaded.split() == [
        "fsm_provider.plugins",
        "fsm_provider.plugins.page",
        "fsm_provider.plugins.plugin",
        "fsm_provider.plugins.webhooks",
    ]


def test_the_protocol_needs_no_airflow():
    loaded = python("""
        import sys
        import fsm_provider.api.client, fsm_provider.testing.service
        loaded = [name for name, module in sys.modules.items() if module is not None]
        print([name for name in loaded if name.startswith("airflow")])
    """)

    assert loaded == "[]"


def test_the_retry_policy_says_which_airflow_it_needs():
    expectation = pytest.raises(
        AirflowOptionalProviderFeatureException, match=r"needs Airflow 3\.3"
    )
    with nullcontext() if RETRY_POLICIES.is_there else expectation:
        import_module("fsm_provider.retry_policy")
