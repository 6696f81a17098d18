"""Any connection gives settings, or one message that names a field and holds no password."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Connection
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_provider.api import FsmInputError, Settings
from fsm_provider.hooks.fsm import settings_from
from tests.capabilities import ANY_EXTRA
from tests.unit.properties.strategies import json_values, texts

CANARY = "canary-token-"
LONGER_THAN_A_FILE_NAME = "a" * 256
SETTINGS = [name for name in Settings.model_fields if name not in ("base_url", "token")]

any_text = st.text(max_size=20)
hosts = st.one_of(
    st.none(),
    st.sampled_from(
        ["https://api.example.com/v1", "api.example.com", "127.0.0.1", "http://[::1]", "//", ":"]
    ),
    st.builds("{}{}{}".format, st.sampled_from(["", "https://", "http://", "ftp://"]), any_text, any_text),
)
passwords = st.sampled_from([None, "", " ", "\n"]) | st.builds(
    "{}{}".format, st.just(CANARY), st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E)) | any_text
)
ports = st.none() | st.integers(-1, 70_000)
schemas = st.sampled_from([None, "", "https", "http", "ftp"]) | any_text
plausible: st.SearchStrategy[Any] = st.one_of(
    st.integers(-1, 100),
    st.integers(0, 100).map(str),
    st.booleans(),
    st.sampled_from(
        ["", "cursor", "repeat", "Europe/London", "Europe", "/", "true", "false", "30", "\0", "2.0"]
    ),
    texts,
    json_values,
)
extras = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(SETTINGS), plausible, max_size=5).map(json.dumps),
    st.dictionaries(st.sampled_from(["base_url", "token"]) | texts, plausible, max_size=2).map(json.dumps),
    json_values.map(json.dumps),
    any_text,
    st.sampled_from(["{", "[]", '{"timeout": NaN}', '{"timeout": 1e400}', "9" * 5_000]),
)


@ANY_EXTRA.needed
@settings(max_examples=1_000)
@given(host=hosts, password=passwords, port=ports, schema=schemas, extra=extras)
def test_any_connection_gives_settings_or_names_a_field_without_the_password(
    host: str | None, password: str | None, port: int | None, schema: str | None, extra: str | None
) -> None:
    connection = Connection(
        conn_id="c", conn_type="fsm", host=host, password=password, port=port, schema=schema, extra=extra
    )
    try:
        read = settings_from(connection)
    except FsmInputError as error:
        shown = f"{error!r} {error} {error.as_dict()} {error.__cause__}"
        message = str(error).removeprefix("connection 'c': ")
        field = message.partition(": ")[0]
        assert field in ["host", "password", "extra", *SETTINGS] or "is not a setting; these are: " in message
    else:
        shown = f"{read!r} {read}"
        assert read.token.get_secret_value() == password
    assert not (password and CANARY in password and password in shown)
    assert CANARY not in shown


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        (json.dumps({"ca_bundle": LONGER_THAN_A_FILE_NAME}), "ca_bundle"),
        (json.dumps({"server_timezone": "\ud800"}), "extra"),
        pytest.param("[" * 2_000, "extra", marks=ANY_EXTRA.needed),
        (json.dumps({"\ud800": 1}), "extra"),
    ],
    ids=["long name", "surrogate", "nested", "surrogate as name"],
)
def test_an_odd_extra_names_its_field(extra: str, field: str) -> None:
    connection = Connection(conn_id="c", conn_type="fsm", host="https://a.b", password="p", extra=extra)

    with pytest.raises(FsmInputError, match=f"^connection 'c': {field}: "):
        settings_from(connection)
