"""The operators that list records, and the one that sends any request."""

import json
from datetime import UTC, datetime
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmInputError, FsmPaginationError, FsmServerError
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.assets import FsmListAssetDynamicFieldsOperator
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.generic import FsmListOperator, FsmRequestOperator
from fsm_provider.testing import faults
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.state_store import context_for


def list_forms(**kwargs):
    return FsmListFormsOperator(task_id="forms", **kwargs)


@pytest.mark.parametrize("dialect", ["specified", "typed", "string"])
def test_forms_of_all_pages_come_once_in_order(service, connect, dialect):
    service.settings.dialect = dialect
    service.seed_forms(35)
    connect(service)

    listed = list_forms().execute({})

    assert [form["id"] for form in listed] == [form["id"] for form in service.forms]
    assert len(service.requests) == 4
    assert len({request.connection for request in service.requests}) == 1


def test_references_hold_no_url(service, connect):
    service.add_form(job_id=1, property_id=2, form_name="Sign-off")
    connect(service)

    (reference,) = list_forms().execute({})

    assert reference.keys() == {
        "id",
        "formName",
        "propertyID",
        "jobID",
        "createdOnDateTime",
        "lastUpdatedOnDateTime",
    }
    assert (reference["formName"], reference["jobID"], reference["propertyID"]) == ("Sign-off", 1, "2")


def test_ids_and_full_records_on_request(service, connect):
    form = service.add_form(job_id=1)
    connect(service)

    assert list_forms(xcom="ids").execute({}) == [form["id"]]
    (full,) = list_forms(xcom="full").execute({})
    assert full["formPDFURL"] == form["formPDFURL"]
    assert full["jobDetails"] == form["jobDetails"]


FILTERS = {
    "property_id": ("propertyID", 2, "2"),
    "job_id": ("jobID", "11", "11"),
    "created_since": ("createdOnDateTime[gte]", "2026-03-01T00:00:00+01:00", "2026-02-28T23:00:00.000Z"),
    "updated_since": ("lastUpdatedOnDateTime[gte]", "2026-03-01", "2026-03-01T00:00:00.000Z"),
    "form_category": ("formCategory", "gas", "gas"),
    "form_name_id": ("formNameID", "9", "9"),
    "created_by_type": ("createdByType", "Office", "Office"),
    "created_by_id": ("createdByID", 31, "31"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_is_sent_with_every_page(service, connect, name):
    wire_name, value, sent = FILTERS[name]
    service.settings.page_size = 2
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
    service.add_form(job_id=10, property_id=1, created=early, updated=early)
    matching = [
        service.add_form(
            job_id=11,
            property_id=2,
            category="gas",
            form_name_id="9",
            createdByType="Office",
            createdByID="31",
            created=late,
            updated=late,
        )["id"]
        for _ in range(3)
    ]
    connect(service)

    assert list_forms(xcom="ids", **{name: value}).execute({}) == matching
    assert [dict(request.query)[wire_name] for request in service.requests] == [sent, sent]


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"created_since": "yesterday"}, "created_since"),
        ({"created_since": "9999-12-31T23:59:59-23:00"}, "created_since"),
        ({"updated_since": 5}, "updated_since"),
        ({"job_id": ""}, "job_id"),
        ({"property_id": [1]}, "property_id"),
    ],
)
def test_a_bad_filter_is_refused_when_the_dag_is_parsed(argument, field):
    with pytest.raises(FsmInputError, match=rf"^{field}: "):
        list_forms(**argument)


def test_an_unknown_value_of_xcom_is_refused():
    with pytest.raises(ValueError, match=r"^xcom: 'pdf'"):
        list_forms(xcom="pdf")


@pytest.mark.parametrize("names", ["Gas", ["Gas", "Oil"], '["Gas", "Oil"]'])
@pytest.mark.parametrize("lists", ["operator", "hook", "export"])
def test_form_names_choose_forms_wherever_forms_are_listed(service, connect, tmp_path, lists, names):
    wanted = [service.add_form(form_name=name)["id"] for name in ("Gas", "Gas ")]
    wanted += [service.add_form(form_name=name)["id"] for name in ("Oil", "gas")][: names != "Gas"]
    connect(service)

    if lists == "operator":
        found = list_forms(form_names=names, xcom="ids").execute({})
    elif lists == "hook":
        found = [form.id for form in FsmHook().list_forms(form_names=names)]
    else:
        path = tmp_path / "forms.jsonl"
        FsmFormsToObjectStorageOperator(task_id="t", destination=str(path), form_names=names).execute({})
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
    service.seed_forms(12)
    connect(service)

    listed = FsmListOperator(task_id="any", path="/forms", query_params={"propertyID": "0"}).execute({})
    assert listed == []
    assert FsmListOperator(task_id="all", path="/forms").execute({}) == service.forms


def test_an_endless_listing_ends_at_max_pages(service, connect):
    service.seed_forms(30)
    connect(service)

    with pytest.raises(FsmPaginationError, match="max_pages=2"):
        FsmListOperator(task_id="any", path="/forms", max_pages=2).execute({})


READS = {
    "forms": FsmListFormsOperator,
    "asset dynamic fields": FsmListAssetDynamicFieldsOperator,
    "any listing": partial(FsmListOperator, path="/forms"),
    "any request": partial(FsmRequestOperator, path="/forms"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    ("status", "error"), [(401, AirflowFailException), (404, AirflowFailException), (503, FsmServerError)]
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


@pytest.mark.parametrize(
    "path", ["forms", "//evil.example/x", "https://evil.example", "/forms?x=1", "/a#b", ""]
)
def test_a_path_that_leads_elsewhere_is_refused_when_the_dag_is_parsed(path):
    for operator in (FsmRequestOperator, FsmListOperator):
        with pytest.raises(FsmInputError, match=r"^path: "):
            operator(task_id="any", path=path)


def test_an_unknown_method_is_refused_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match=r"^method: 'FETCH'"):
        FsmRequestOperator(task_id="any", path="/x", method="FETCH")


def request(**kwargs):
    return FsmRequestOperator(task_id="request", **kwargs)


JOB = {"method": "post", "path": "/properties/7/jobs", "json": {"notes": "x"}}


def test_a_write_is_sent_once_and_a_read_each_time(service, connect, store):
    connect(service)

    responses = [request(**JOB).execute(context_for(store, cleared=cleared)) for cleared in (0, 0, 1)]
    for _ in range(2):
        request(path="/forms").execute(context_for(store))

    assert responses[0] == service.jobs[0]
    assert [one["id"] for one in responses[1:]] == [service.jobs[0]["id"]] * 2
    assert all("notes" not in one for one in responses[1:])
    assert len(service.requests_to("POST", "*")) == 1
    assert len(service.requests_to("GET", "/forms")) == 2


def test_a_write_whose_response_has_no_body_is_sent_once(service, connect, store):
    connect(service)
    service.fail("PUT", "/jobs/7", faults.Status(204), every=True)

    responses = [request(method="put", path="/jobs/7", json={}).execute(context_for(store)) for _ in range(2)]

    assert responses == [None, None]
    assert len(service.requests) == 1
