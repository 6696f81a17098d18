from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.settings import Settings

TOKEN = "canary-token-7f3a"


def settings(**values: Any) -> Settings:
    return Settings.parse({"base_url": "https://api.example.com", "token": TOKEN, **values})


BAD = {
    "base_url": [
        None,
        5,
        "",
        "api.example.com",
        "https://",
        "ftp://api.example.com",
        "https://user:word@host",
        "https://[::1",
        "https://host:99999",
        "https://host?a=b",
        "https://host/v1#",
        "https://host\n",
        "https://host/a b",
        "https://host\\a",
        "https://host:x",
        "https://host/50%",
    ],
    "token": [None, 5, "", "a b", "a\n", "é", "\x7f", "a\0", "\ud83d", '"a"', "'a'"],
    "api_version": [None, 2.0, "é", "a\nb", "a\0", "\ud83d"],
    "idempotency_header": [5, "a b", "a\n", "é"],
    "cursor_param": [None, 5, "", "a b", "a\n"],
    "page_size_param": [5, "", "a b"],
    "page_size": [0, -1, 1.5, "x", ""],
    "server_timezone": ["", "Mars/Base", "../../etc/passwd", None, 5],
    "timeout": [0, "x", None, "inf", "nan"],
    "max_retries": [-1, 1.5, "x", None],
    "max_requests_per_second": [0, "x", "inf"],
    "verify_ssl": ["maybe", 2, None],
    "allow_http": ["maybe", None],
    "ca_bundle": [5, "/no/such/bundle.pem", "a" * 256],
}


def bad_values():
    """Yield each field with a value that it refuses."""
    for field, values in BAD.items():
        for value in values:
            yield field, value


@pytest.mark.parametrize(("field", "value"), list(bad_values()))
def test_a_bad_value_is_named_as_the_connection_form_names_it(field, value):
    names_in_form = {"base_url": "host", "token": "password"}
    name = names_in_form.get(field, field)

    with pytest.raises(FsmInputError, match=rf"^{name}: [^;]+$"):
        settings(**{field: value})


def test_every_bad_value_is_named_in_one_message():
    with pytest.raises(FsmInputError) as raised:
        settings(base_url="http://api.example.com", token="", timeout="y", page_size=3)

    problems = str(raised.value).split("; ")
    names = [problem.split(": ")[0] for problem in problems]
    assert sorted(names) == ["host", "page_size", "password", "timeout"]


def test_a_url_that_cannot_be_parsed_is_not_quoted():
    with pytest.raises(FsmInputError) as raised:
        settings(base_url="https://user:canary/x@api.example.com")

    assert "canary" not in str(raised.value)


def test_missing_values_are_named():
    with pytest.raises(FsmInputError, match=r"^host: is missing; password: is missing$"):
        Settings.parse({})


@pytest.mark.parametrize("name", ["password", "curser_param"])
def test_an_unknown_setting_is_named_with_those_that_are_known(name):
    message = rf"^{name}: is not a setting.*allow_http.*cursor_param"

    with pytest.raises(FsmInputError, match=message):
        settings(**{name: "x"})


def test_the_name_of_an_unknown_setting_makes_no_second_line():
    with pytest.raises(FsmInputError) as raised:
        settings(**{"a\nb": "x"})
    assert str(raised.value).startswith("'a\\nb': is not a setting")


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com",
        "0.0.0.0",
        "[::2]",
        "128.0.0.1",
        "127.0.0.1.example.com",
        "localhostx",
    ],
)
def test_http_is_refused_off_loopback_unless_allowed(host):
    base_url = f"http://{host}:8080/v1"

    with pytest.raises(FsmInputError, match=r"^host: .*allow_http"):
        settings(base_url=base_url)

    allowed = settings(base_url=base_url, allow_http=True)
    assert allowed.base_url.startswith("http://")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"])
@pytest.mark.parametrize("port", ["", ":8080"])
def test_http_is_allowed_on_loopback(host, port):
    base_url = f"http://{host}{port}"

    assert settings(base_url=base_url).base_url == base_url


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/", ""),
        ("/v1/", "/v1"),
        ("/a/v1", "/a/v1"),
    ],
)
def test_the_path_of_the_host_is_kept_without_its_last_slash(path, kept):
    checked = settings(base_url=f"https://host:8443{path}")

    assert checked.base_url == f"https://host:8443{kept}"


@pytest.mark.parametrize(
    ("field", "text", "read"),
    [
        ("timeout", "5", 5.0),
        ("max_retries", "5", 5),
        ("max_requests_per_second", "0.5", 0.5),
        ("verify_ssl", "false", False),
        ("allow_http", "1", True),
        ("server_timezone", "Europe/London", ZoneInfo("Europe/London")),
        ("api_version", "", ""),
        ("cursor_param", "page[cursor]", "page[cursor]"),
    ],
)
def test_values_may_be_text_as_in_a_connection_uri(field, text, read):
    checked = settings(**{field: text})

    assert getattr(checked, field) == read


def test_a_page_size_needs_the_name_of_its_parameter():
    assert settings(page_size="1", page_size_param="limit").page_size == 1
    with pytest.raises(FsmInputError, match=r"^page_size: .*page_size_param"):
        settings(page_size=50)


@pytest.mark.parametrize("token", [TOKEN, f"{TOKEN} {TOKEN}", f'"{TOKEN}"'])
@pytest.mark.parametrize("make", [Settings.parse, Settings.model_validate])
def test_the_token_is_in_no_message(make, token):
    values = {"base_url": "http://api.example.com", "token": token, "timeout": "x", "nope": 1}

    with pytest.raises((FsmInputError, ValidationError)) as raised:
        make(values)

    assert TOKEN not in str(raised.value)
    assert TOKEN not in repr(raised.value)


def test_the_token_is_in_no_repr_and_no_dump():
    checked = settings()

    assert TOKEN not in repr(checked)
    assert TOKEN not in str(checked)
    assert TOKEN not in str(checked.model_dump())
    assert TOKEN not in checked.model_dump_json()
    assert checked.token.get_secret_value() == TOKEN


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        settings().base_url = "https://elsewhere.example.com"


@pytest.mark.parametrize(
    "url",
    [
        "https://app.example.com:8443/#/properties/{propertyID}?job={id}",
        "http://127.0.0.1:8400/jobs/{id}",
    ],
)
def test_the_page_of_a_job_is_a_url_with_its_id(url):
    assert settings(web_url=url).web_url == url


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert({id})",
        "http://app.example.com/{id}",
        "https://app.example.com/jobs",
        "https://user:canary@app.example.com/{id}",
        "https://app.example.com/a b/{id}",
        "https://app.example.com\\@evil.example/{id}",
    ],
)
def test_a_page_of_a_job_that_cannot_be_used_is_refused(url):
    with pytest.raises(FsmInputError, match=r"^web_url: ") as caught:
        settings(web_url=url, allow_http=True)

    assert "canary" not in str(caught.value)
