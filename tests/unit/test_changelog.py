"""The changelog is that of the version in ``fsm_provider/__init__.py``, which the wheel's is read from."""

import re
from pathlib import Path

from fsm_provider import __version__

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def test_the_newest_version_is_this_one():
    versions = re.findall(r"^## (\S+)", CHANGELOG.read_text(), re.MULTILINE)

    assert versions[0] == __version__
