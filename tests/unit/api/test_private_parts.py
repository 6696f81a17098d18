"""The private parts of urllib3 and http.client that the adapter relies on, by name."""

from http.client import HTTPResponse

import pytest
from urllib3.connection import HTTPConnection


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (HTTPConnection, "_new_conn"),
        (HTTPConnection("localhost"), "_tunnel_host"),
        (HTTPResponse, "_close_conn"),
    ],
)
def test_what_the_adapter_overrides_or_reads_is_there(owner, name):
    assert hasattr(owner, name)
