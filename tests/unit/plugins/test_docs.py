"""The configurations in the documentation are ones that the receiver takes."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from fsm_provider.plugins.webhooks.settings import Endpoint, ReceiverSettings, Scheme

TEXT = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


@pytest.mark.parametrize("block", BLOCKS)
def test_json_block(block):
    assert ReceiverSettings.parse(json.dumps(json.loads(block))).endpoints


@pytest.mark.parametrize("name", [*Endpoint.model_fields, *Scheme.model_fields])
def test_every_setting_is_documented(name):
    assert f"`{name}`" in TEXT
