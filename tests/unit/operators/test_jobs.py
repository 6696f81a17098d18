"""Creating one job, from the DAG file to the request."""

from decimal import Decimal
from traceback import format_exception

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmInputError
from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.testing import faults
from tests.unit.state_store import context_for


def create(**kwargs):
    return FsmCreateJobOperator(task_id="create", **{"property_id": 7, "job": {}, **kwargs})


def test_the_result_is_the_job_under_the_services_names(service, connect):
    connect(service)

    job = create(job={"customer_reference": "PO-1", "quotedAmount": Decimal("99.50")}).execute({})

    (stored,) = service.jobs
    assert job["id"] == stored["id"]
    assert job["propertyID"] == 7
    assert job["customerReference"] == "PO-1"
    assert job["quotedAmount"] == "99.50"
    assert job["links"]["self"] == stored["links"]["self"]


@pytest.mark.parametrize(("version", "sent"), [({}, "2.0"), ({"api_version": None}, None)])
def test_the_api_version_is_sent(service, connect, version, sent):
    connect(service, **version)

    create().execute({})

    assert service.requests[0].headers.get("x-api-version") == sent


def test_a_template_hides_only_its_own_field_from_the_check():
    with pytest.raises(FsmInputError, match=r"^job\.unknown: (?!.*job\.quotedAmount)"):
        create(property_id="{{ params.p }}", job={"quotedAmount": "{{ params.q }}", "unknown": 1})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"job": {"quotedAmount": "{{ amount }}"}}, r"job\.quotedAmount"),
        ({"property_id": "{{ nothing }}"}, "property_id: is the text 'None'"),
    ],
)
def test_a_rendered_template_is_checked_before_anything_is_sent(service, connect, given, says):
    connect(service)
    operator = create(**given)
    operator.render_template_fields({"amount": "a lot", "nothing": None})

    with pytest.raises(AirflowFailException, match=says):
        operator.execute({})
    assert service.requests == []


def test_the_ledger_holds_nobodys_name_telephone_number_or_notes(service, connect, store):
    connect(service)
    canaries = {
        "customerContact": {
            "fullName": "canary",
            "mobile": "canary",
            "email": "canary@example.com",
        },
        "createdByUser": "canary",
        "lastUpdatedOnDateTime": "canary",
    }
    rewrite = faults.Rewrite(lambda body: {**body, **canaries})
    service.fail("POST", "/properties/7/jobs", rewrite)

    job = create(job={"notes": "canary: ring the tenant"}).execute(context_for(store))

    assert job["customerContact"]["fullName"] == "canary"
    assert str(job["id"]) in str(store.rows)
    assert "canary" not in str(store.rows)


@pytest.mark.parametrize("status", [409, 502])
def test_what_the_service_says_of_people_is_in_the_error_once_and_not_in_the_ledger(
    service, connect, store, status
):
    connect(service, max_retries=0)
    service.fail("POST", "/properties/7/jobs", faults.Status(status, body={"contact": "Jane Roe"}))

    with pytest.raises(AirflowFailException) as failure:
        create().execute(context_for(store))
    assert "".join(format_exception(failure.value)).count("Jane Roe") == 1
    assert store.rows
    assert "Jane Roe" not in str(store.rows)


@pytest.mark.parametrize(
    "links", [dict.fromkeys(["self", "property", "appointments"]), "/jobs/1", None]
)
def test_the_page_of_the_job_is_with_its_links_whoever_created_it(service, connect, store, links):
    service.fail("POST", "/properties/7/jobs", faults.Rewrite(lambda job: {**job, "links": links}))
    connect(service, web_url="https://app.example.com/{propertyID}/jobs/{id}")
    created = create().execute(context_for(store))
    connect(service, web_url="https://new.example.com/{id}")
    existing = create().execute(context_for(store, cleared=1))

    own, job_id = links if isinstance(links, dict) else {}, service.jobs[0]["id"]
    assert created["links"] == {**own, "web": f"https://app.example.com/7/jobs/{job_id}"}
    assert existing["links"] == {"web": f"https://new.example.com/{job_id}"}
