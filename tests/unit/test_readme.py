"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

from tests.capabilities import SHARED_STREAMS, TASK_SDK

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block(block):
    if "completed_forms" in block:
        SHARED_STREAMS.require()
    if "airflow.sdk" in block:
        TASK_SDK.require()
    exec(compile(block, README.name, "exec"), {})
