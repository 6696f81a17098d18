from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.settings import Settings

TOKEN = "canary-token-7f3a"


def settings(**values: Any) -> Settings:
    return Settings.checked({"base_url": "https://api.example.com", "token": TOKEN, **values})


def test_defaults_are_those_of_the_contract():
    assert settings().model_dump(exclude={"base_url", "token"}) == {
        "account": "",
        "api_version": "2.0",
        "cursor_param": "cursor",
        "page_size_param": None,
        "page_size": None,
        "event_types_style": "separate",
        "server_timezone": ZoneInfo("UTC"),
        "timeout": 30.0,
        "max_retries": 4,
        "max_response_mb": 64,
        "max_requests_per_second": None,
        "verify_ssl": True,
        "ca_bundle": None,
        "allow_http": False,
        "state_conn_id": None,
        "idempotency_header": None,
        "idempotency_hours": 20.0,
        "web_url": None,
    }


BAD = [
    *[("base_url", value) for value in (None, 5, "", "api.example.com", "https://", "ftp://api.example.com")],
    *[
        ("base_url", f"https://{rest}")
        for rest in ("user@host", "user:word@host", ":@host", "[::1", "host:99999")
    ],
    *[
        ("base_url", f"https://host{rest}")
        for rest in (
            "?a=b",
            "/v1?a",
            "#a",
            "/v1#a",
            "?",
            "/v1#",
            " ",
            "\n",
            "/a b",
            "\\a",
            ":x",
            "/50%",
            "/%zz",
        )
    ],
    *[("token", value) for value in (None, 5, "", "a b", "a\n", "é", "\x7f", '"a"', "'a'")],
    *[("api_version", value) for value in (None, 2.0, "é")],
    *[("cursor_param", value) for value in (None, 5, "", "a b", "a\n")],
    *[("page_size_param", value) for value in (5, "", "a b")],
    *[("page_size", value) for value in (0, -1, 1.5, "x", "")],
    *[("event_types_style", value) for value in ("", "commas", None)],
    *[("server_timezone", value) for value in ("", "Mars/Base", "../../etc/passwd", None, 5)],
    *[("timeout", value) for value in (0, -1, "x", None, "inf", "nan")],
    *[("max_retries", value) for value in (-1, 1.5, "x", None)],
    *[("max_requests_per_second", value) for value in (0, -1, "x", "inf")],
    *[("verify_ssl", value) for value in ("maybe", 2, None)],
    *[("allow_http", value) for value in ("maybe", 2, None)],
    *[("ca_bundle", value) for value in (5, "/no/such/bundle.pem")],
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_named_as_the_connection_form_names_it(field, value):
    shown = {"base_url": "host", "token": "password"}.get(field, field)

    with pytest.raises(FsmInputError, match=rf"^{shown}: [^;]+$"):
        settings(**{field: value})


def test_every_bad_value_is_named_in_one_message():
    with pytest.raises(FsmInputError) as raised:
        settings(base_url="x", token="", timeout="y", page_size=0, verify_ssl="maybe")

    named = [problem.split(": ")[0] for problem in str(raised.value).split("; ")]
    assert sorted(named) == ["host", "page_size", "password", "timeout", "verify_ssl"]


def test_bad_values_are_named_beside_those_that_do_not_agree():
    with pytest.raises(FsmInputError) as raised:
        settings(base_url="http://api.example.com", token="", page_size=3)

    named = [problem.split(": ")[0] for problem in str(raised.value).split("; ")]
    assert sorted(named) == ["host", "page_size", "password"]


def test_a_url_that_cannot_be_parsed_is_not_quoted():
    with pytest.raises(FsmInputError) as raised:
        settings(base_url="https://user:canary/x@api.example.com")

    assert "canary" not in str(raised.value)


def test_missing_values_are_named():
    with pytest.raises(FsmInputError, match=r"^host: is missing; password: is missing$"):
        Settings.checked({})


@pytest.mark.parametrize("name", ["host", "password", "colour", "curser_param"])
def test_an_unknown_setting_is_named_with_those_that_are_known(name):
    with pytest.raises(FsmInputError, match=rf"^{name}: is not a setting.*allow_http.*cursor_param"):
        settings(**{name: "x"})


def test_the_name_of_an_unknown_setting_makes_no_second_line():
    with pytest.raises(FsmInputError) as raised:
        settings(**{"a\nb": "x"})
    assert str(raised.value).startswith("'a\\nb': is not a setting")


@pytest.mark.parametrize(
    "host",
    [
        *["api.example.com", "0.0.0.0", "10.0.0.1", "[::2]", "128.0.0.1"],
        *["localhost.example.com", "127.0.0.1.example.com", "localhostx"],
    ],
)
def test_http_is_refused_off_loopback_unless_allowed(host):
    with pytest.raises(FsmInputError, match=r"^host: .*allow_http"):
        settings(base_url=f"http://{host}:8080/v1")

    assert settings(base_url=f"http://{host}:8080/v1", allow_http=True).base_url.startswith("http://")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"])
@pytest.mark.parametrize("port", ["", ":8080"])
def test_http_is_allowed_on_loopback(host, port):
    assert settings(base_url=f"http://{host}{port}").base_url == f"http://{host}{port}"


@pytest.mark.parametrize(("given", "kept"), [("/", ""), ("/v1/", "/v1"), ("/a/v1", "/a/v1")])
def test_the_path_of_the_host_is_kept_without_its_last_slash(given, kept):
    assert settings(base_url=f"https://host:8443{given}").base_url == f"https://host:8443{kept}"


@pytest.mark.parametrize(
    ("field", "text", "read"),
    [
        ("timeout", "5", 5.0),
        ("max_retries", "5", 5),
        ("max_requests_per_second", "0.5", 0.5),
        ("verify_ssl", "false", False),
        ("verify_ssl", "False", False),
        ("allow_http", "true", True),
        ("allow_http", "1", True),
        ("server_timezone", "Europe/London", ZoneInfo("Europe/London")),
        ("api_version", "", ""),
        ("cursor_param", "page[cursor]", "page[cursor]"),
        ("event_types_style", "brackets", "brackets"),
    ],
)
def test_values_may_be_text_as_in_a_connection_uri(field, text, read):
    assert getattr(settings(**{field: text}), field) == read


@pytest.mark.parametrize(("field", "value"), [("max_retries", 0), ("timeout", 0.1), ("ca_bundle", None)])
def test_the_least_value_is_allowed(field, value):
    assert getattr(settings(**{field: value}), field) == value


def test_a_page_size_needs_the_name_of_its_parameter():
    assert settings(page_size="1", page_size_param="limit").page_size == 1
    with pytest.raises(FsmInputError, match=r"^page_size: .*page_size_param"):
        settings(page_size=50)


@pytest.mark.parametrize("token", [TOKEN, f"{TOKEN} {TOKEN}", f"{TOKEN}\n", f"Bearer {TOKEN}", f'"{TOKEN}"'])
@pytest.mark.parametrize("make", [Settings.checked, Settings.model_validate])
def test_the_token_is_in_no_message(make, token):
    values = {"base_url": "http://api.example.com", "token": token, "timeout": "x", "nope": 1}

    with pytest.raises((FsmInputError, ValidationError)) as raised:
        make(values)

    assert TOKEN not in str(raised.value) + repr(raised.value)


def test_the_token_is_in_no_repr_and_no_dump():
    made = settings()

    assert TOKEN not in repr(made) + str(made) + str(made.model_dump()) + made.model_dump_json()
    assert made.token.get_secret_value() == TOKEN


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        settings().base_url = "https://elsewhere.example.com"


@pytest.mark.parametrize(
    "url",
    [
        "https://app.example.com/jobs/{id}",
        "https://app.example.com:8443/#/properties/{propertyID}?job={id}",
        "http://127.0.0.1:8400/jobs/{id}",
    ],
)
def test_the_page_of_a_job_is_a_url_with_its_id(url):
    assert settings(web_url=url).web_url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "jobs/{id}",
        "javascript:alert({id})",
        "ftp://app.example.com/{id}",
        "http://app.example.com/{id}",
        "https://app.example.com/jobs",
        "https://app.example.com/{propertyID}",
        "https://app.example.com/{id}/{jobID}",
        "https://app.example.com/{id}/{}",
        "https://app.example.com/{id}/{{id}}",
        "https://app.example.com/{id}/{id.__class__}",
        "https://app.example.com/{id}/}",
        "https://{id}.example.com/",
        "https://user:canary@app.example.com/{id}",
        "https://{id}@app.example.com/",
        "https://app.example.com/a b/{id}",
        "https://app.example.com\\@evil.example/{id}",
    ],
)
def test_a_page_of_a_job_that_cannot_be_used_is_refused(url):
    with pytest.raises(FsmInputError, match=r"^web_url: ") as caught:
        settings(web_url=url, allow_http=True)

    assert "canary" not in str(caught.value)
