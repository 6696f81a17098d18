"""What the hook's methods tell, and return to, who has nothing else, such as an agent's tools."""

import inspect
import json
import re
import textwrap
from typing import Any

import pytest
from pydantic import TypeAdapter

from fsm_provider.api import FsmClient
from fsm_provider.api.forms import ALL_FILTERS
from fsm_provider.api.payloads import JOB_FIELDS
from fsm_provider.hooks.fsm import FsmHook

LISTINGS = ["list_forms", "list_asset_dynamic_fields", "paginate"]
WRITES = ["create_job", "register_webhook", "request"]
METHODS = [*LISTINGS, *WRITES, "download_form_pdf"]


def parameters_of(method) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def example_of(name: str) -> str:
    """Return the code of a method's docstring."""
    text = inspect.getdoc(getattr(FsmHook, name))
    (code,) = re.findall(r"^Example::\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    return textwrap.dedent(code)


def test_every_method_for_the_service_is_here():
    defined = {name for name, member in vars(FsmHook).items() if inspect.isfunction(member)}
    ours = {"test_connection", "get_conn"}  # Airflow's

    assert {name for name in defined if not name.startswith("_")} - ours == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_help_is_enough(name):
    method = getattr(FsmHook, name)
    text = inspect.getdoc(method)

    documented = re.findall(r"^:param (\w+):", text, re.MULTILINE)
    assert documented == parameters_of(method)
    assert re.search(r"\(section \d", " ".join(text.split()))
    assert ":return:" in text
    assert ":raises FsmInputError:" in text
    assert ":raises FsmError: any other" in text


def test_a_form_listing_has_each_filter_by_name():
    assert set(parameters_of(FsmHook.list_forms)) == {*ALL_FILTERS, "params"}


def test_a_job_has_each_field_by_name():
    text = inspect.getdoc(FsmHook.create_job)
    named = set(re.findall(r"``(\w+)``", text))

    fields = {name for name in JOB_FIELDS.values() if "Instance" not in name}
    assert fields | {"extra_fields", "serviceReminderInstance1ID"} <= named


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"list_forms", "download_form_pdf"}))
def test_the_client_takes_the_same_arguments(name):
    of_hook = inspect.signature(getattr(FsmHook, name)).parameters.values()
    of_client = inspect.signature(getattr(FsmClient, name)).parameters.values()

    assert [str(each) for each in of_hook] == [str(each) for each in of_client]


@pytest.mark.parametrize("name", WRITES)
def test_a_write_says_first_that_no_ledger_is_kept(name):
    """An agent gets the first paragraph as the description of its tool."""
    first_paragraph, _, _ = inspect.getdoc(getattr(FsmHook, name)).partition("\n\n")

    assert "ledger" in first_paragraph


@pytest.mark.parametrize("name", METHODS)
def test_its_example_runs_and_a_tool_can_return_the_result(name, service, connect, tmp_path):
    connect(service)
    service.add_form(property_id=7, job_id=11)
    service.add_asset_dynamic_field()
    *before, last = example_of(name).replace("/data", str(tmp_path)).split("FsmHook()")
    names: dict[str, Any] = {"FsmHook": FsmHook}

    exec("FsmHook()".join(before), names)
    result = eval(f"FsmHook(){last}", names)

    assert len(service.requests) > 0
    assert isinstance(result, list) == (name in LISTINGS)
    if name in ("list_forms", "paginate"):
        assert len(result) == 1
    assert json.loads(TypeAdapter(Any).dump_json(result))
