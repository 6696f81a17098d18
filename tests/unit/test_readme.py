"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block(block):
    exec(compile(block, README.name, "exec"), {})
