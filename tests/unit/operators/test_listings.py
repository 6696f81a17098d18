"""The operators that list records, and the one that sends any request."""

import json
from datetime import UTC, datetime
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmServerError
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.assets import FsmListAssetDynamicFieldsOperator
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.generic import FsmListOperator, FsmRequestOperator
from fsm_provider.testing import faults
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.state_store import context_for


def list_forms(**kwargs):
    return FsmListFormsOperator(task_id="forms", **kwargs)


def test_forms_of_all_pages_come_once_in_order_as_references_ids_or_records(service, connect):
    service.seed_forms(35)
    connect(service)

    references = list_forms().execute({})
    assert len(service.requests) == 4
    assert len({request.connection for request in service.requests}) == 1

    names = {"id", "formName", "propertyID", "jobID", "createdOnDateTime", "lastUpdatedOnDateTime"}
    assert [reference.keys() for reference in references] == [names] * 35
    ids = [form["id"] for form in service.forms]
    assert (
        [reference["id"] for reference in references] == list_forms(xcom="ids").execute({}) == ids
    )
    full = list_forms(xcom="full").execute({})
    assert [record["formPDFURL"] for record in full] == [
        form["formPDFURL"] for form in service.forms
    ]


def test_all_filters_are_sent_with_every_page(service, connect):
    service.settings.page_size = 2
    late, others = (
        datetime(2026, 4, 1, tzinfo=UTC),
        {"createdByType": "Office", "createdByID": "31"},
    )
    others |= {"category": "gas", "form_name_id": "9", "created": late, "updated": late}
    matching = [service.add_form(job_id=11, property_id=2, **others)["id"] for _ in range(3)]
    service.add_form(job_id=10, property_id=1)
    connect(service)

    listing = list_forms(
        xcom="ids",
        property_id=2,
        job_id="11",
        created_since="2026-03-01T00:00:00+01:00",
        updated_since="2026-03-01",
        form_category="gas",
        form_name_id="9",
        created_by_type="Office",
        created_by_id=31,
    )
    assert listing.execute({}) == matching

    sent = {
        "propertyID": "2",
        "jobID": "11",
        "createdOnDateTime[gte]": "2026-02-28T23:00:00.000Z",
        "lastUpdatedOnDateTime[gte]": "2026-03-01T00:00:00.000Z",
        "formCategory": "gas",
        "formNameID": "9",
        "createdByType": "Office",
        "createdByID": "31",
    }
    assert [sent.items() <= dict(request.query).items() for request in service.requests] == [
        True,
        True,
    ]


@pytest.mark.parametrize("names", ["Gas", ["Gas", "Oil"], '["Gas", "Oil"]'])
@pytest.mark.parametrize("lists", ["operator", "hook", "export"])
def test_form_names_choose_forms_wherever_forms_are_listed(
    service, connect, tmp_path, lists, names
):
    wanted = [service.add_form(form_name=name)["id"] for name in ("Gas", "Gas ")]
    wanted += [service.add_form(form_name=name)["id"] for name in ("Oil", "gas")][: names != "Gas"]
    connect(service)

    if lists == "operator":
        found = list_forms(form_names=names, xcom="ids").execute({})
    elif lists == "hook":
        found = [form.id for form in FsmHook().list_forms(form_names=names)]
    else:
        path = tmp_path / "forms.jsonl"
        FsmFormsToObjectStorageOperator(
            task_id="t", destination=str(path), form_names=names
        ).execute({})
        found = [json.loads(line)["id"] for line in path.read_text().splitlines()]

    assert sorted(found) == wanted


def test_asset_dynamic_fields_under_the_services_names(service, connect):
    for _ in range(12):
        field = service.add_asset_dynamic_field()
    connect(service)

    listed = FsmListAssetDynamicFieldsOperator(task_id="assets").execute({})

    assert len(listed) == 12
    assert listed[-1]["dynamicFieldID"] == field["dynamicFieldID"]
    assert listed[-1]["usedBy"][0]["fieldKey"] == field["usedBy"][0]["fieldKey"]


def test_any_path_can_be_listed(service, connect):
    service.seed_forms(30)
    connect(service)
    listing = partial(FsmListOperator, task_id="any", path="/forms")

    assert listing(query_params={"propertyID": "0"}).execute({}) == []
    assert listing().execute({}) == service.forms


SAFE_METHODS = {
    "forms": FsmListFormsOperator,
    "asset dynamic fields": FsmListAssetDynamicFieldsOperator,
    "any listing": partial(FsmListOperator, path="/forms"),
    "any request": partial(FsmRequestOperator, path="/forms"),
}


@pytest.mark.parametrize("read", SAFE_METHODS.values(), ids=SAFE_METHODS)
@pytest.mark.parametrize(
    ("status", "error"),
    [(401, AirflowFailException), (404, AirflowFailException), (503, FsmServerError)],
)
def test_only_a_transient_error_is_left_to_a_retry(service, connect, read, status, error):
    connect(service, max_retries=0)
    service.fail("GET", "*", faults.Status(status))

    with pytest.raises(error, match=f"returned HTTP {status}") as raised:
        read(task_id="read").execute({})
    assert raised.type is error
    assert len(service.requests) == 1


def test_any_request_can_be_sent(service, connect):
    connect(service)
    operator = FsmRequestOperator(
        task_id="any",
        method="post",
        path="/properties/{{ property }}/jobs",
        json={"notes": "{{ notes }}"},
        headers={"X-API-VERSION": "2.0"},
    )
    operator.render_template_fields({"property": 5, "notes": "Ring first"})

    response = operator.execute({})

    assert response == service.jobs[0]
    assert service.requests[0].headers["x-api-version"] == "2.0"


def test_another_authorization_is_refused(service, connect):
    connect(service)
    operator = FsmRequestOperator(task_id="any", path="/forms")
    operator.headers = {"authorization": "Basic x"}  # as a template renders it

    with pytest.raises(AirflowFailException, match="headers: Authorization"):
        operator.execute({})
    assert service.requests == []


def request(**kwargs):
    return FsmRequestOperator(task_id="request", **kwargs)


JOB = {"method": "post", "path": "/properties/7/jobs", "json": {"notes": "x"}}


def test_a_write_is_sent_once_and_a_read_each_time(service, connect, store):
    connect(service)

    responses = [
        request(**JOB).execute(context_for(store, cleared=cleared)) for cleared in (0, 0, 1)
    ]
    for _ in range(2):
        request(path="/forms").execute(context_for(store))

    assert responses[0] == service.jobs[0]
    assert [response["id"] for response in responses[1:]] == [service.jobs[0]["id"]] * 2
    assert all("notes" not in response for response in responses[1:])
    assert len(service.requests_to("POST", "*")) == 1
    assert len(service.requests_to("GET", "/forms")) == 2


def test_a_write_whose_response_has_no_body_is_sent_once(service, connect, store):
    connect(service)
    service.fail("PUT", "/jobs/7", faults.Status(204), every=True)

    responses = [
        request(method="put", path="/jobs/7", json={}).execute(context_for(store)) for _ in range(2)
    ]

    assert responses == [None, None]
    assert len(service.requests) == 1
