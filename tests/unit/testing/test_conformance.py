"""The fake and the client against the OpenAPI document, which was written from the specification.

The generated requests differ with each run. A failure prints the seed; with it in the environment
variable ``FSM_CONFORMANCE_SEED`` the same requests are sent again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from fsm_provider.api import models, payloads
from fsm_provider.api.forms import FORM_FILTERS
from fsm_provider.testing import FakeFieldService, openapi

SEED = int(os.environ.get("FSM_CONFORMANCE_SEED") or random.SystemRandom().getrandbits(32))
MAX_EXAMPLES = 50
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
    ignored_auth,
]
USE = {"fieldKey": "k", "fieldDescription": "Make"}
USAGES = [
    {**USE, "scope": "standard"},
    {**USE, "scope": "assetType", "assetTypeID": 4, "assetTypeDescription": "Boiler"},
    {**USE, "scope": "assetGroup", "assetGroupID": 5, "assetGroupDescription": "Heating"},
]
OPERATIONS = [
    ("/assetDynamicFieldValues", "GET"),
    ("/properties/{propertyID}/jobs", "POST"),
    ("/forms", "GET"),
    ("/settings/webhooks", "POST"),
]


def load_schema(document: dict[str, Any]) -> Any:
    config = {
        "seed": SEED,
        # Whether the token is needed is a check of its own: all else is asked with it.
        "generation": {
            "max-examples": MAX_EXAMPLES,
            "database": "none",
            "with-security-parameters": False,
        },
        # 400 is the job creation's alone, and 409 what else the fake has for a bad parameter.
        "checks": {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 409]}},
    }
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))


DOCUMENT = openapi.document()
SCHEMAS = DOCUMENT["components"]["schemas"]
API = load_schema(DOCUMENT)


def add_fields(service: FakeFieldService) -> None:
    for _ in range(5):
        service.add_asset_dynamic_field(used_by=USAGES)


@pytest.fixture
def seeded() -> Iterator[FakeFieldService]:
    with FakeFieldService(page_size=2) as service:
        service.seed_forms(5)
        add_fields(service)
        yield service


@pytest.fixture
def fuzzed(seeded: FakeFieldService) -> Iterator[FakeFieldService]:
    """A service that must have accepted and refused requests by the end of the test."""
    print(f"FSM_CONFORMANCE_SEED={SEED}")
    yield seeded
    statuses = {request.status for request in seeded.requests}
    assert statuses & {200, 201}
    assert statuses & {400, 401, 409}


def send(case: Any, service: FakeFieldService, checks: list[Any]) -> None:
    case.call_and_validate(
        base_url=service.base_url,
        headers={"Authorization": f"Bearer {service.settings.token}"},
        checks=checks,
    )


@API.parametrize()
@settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
def test_the_fake_conforms_whatever_it_is_asked(case: Any, fuzzed: FakeFieldService) -> None:
    send(case, fuzzed, CHECKS)


@pytest.mark.parametrize(
    "body",
    [
        b'{"extra": NaN}',
        b'{"extra": 1e999}',
        b'{"notes": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"extra": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["nan", "infinity", "surrogate", "surrogate key", "deep"],
)
def test_a_body_that_cannot_be_sent_back_is_a_bad_request_and_creates_nothing(call, body):
    headers = {"Content-Type": "application/json"}

    response = call("POST", "/properties/7/jobs", data=body, headers=headers)

    assert response.status_code == 400
    assert call.service.jobs == []


def test_a_number_too_long_to_be_read_is_no_server_error(call):
    digits = "1" * 5000

    assert call.create_job(digits).status_code == 404
    response = call.create_job(7, {"customerContactID": digits})
    assert response.status_code == 201
    assert response.json()["customerContact"]["contactID"] == 0


@pytest.mark.parametrize(
    ("dialect", "assets", "forms"),
    [
        ("specified", "TypedPagination", "StringPagination"),
        ("typed", "TypedPagination", "TypedPagination"),
        ("string", "StringPagination", "StringPagination"),
    ],
)
def test_every_page_is_in_the_dialect(serve, dialect, assets, forms):
    call = serve(dialect=dialect, page_size=2)
    call.service.seed_forms(5)
    add_fields(call.service)

    assert_pages_are_of(
        pages=list(call.pages("/assetDynamicFieldValues")),
        page_schema="AssetDynamicFieldPage",
        pagination_schema=assets,
    )
    assert_pages_are_of(
        pages=list(call.pages("/forms")),
        page_schema="FormPage",
        pagination_schema=forms,
    )


def assert_pages_are_of(
    pages: list[dict[str, Any]], page_schema: str, pagination_schema: str
) -> None:
    """Check the three pages of a listing against a schema, with the pagination of a dialect."""
    document = openapi.document()
    properties = document["components"]["schemas"][page_schema]["properties"]
    properties["pagination"] = {"$ref": f"#/components/schemas/{pagination_schema}"}
    schema = {**document, "$ref": f"#/components/schemas/{page_schema}"}
    validator = Draft202012Validator(schema)

    assert len(pages) == 3
    for page in pages:
        validator.validate(page)


def test_the_document_is_one_of_openapi_3_1():
    API.validate()
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def documented_operation(path: str, method: str) -> dict[str, Any]:
    return DOCUMENT["paths"][path][method.lower()]


def documented_parameters(path: str, method: str, location: str) -> set[str]:
    names = set()
    for parameter in documented_operation(path, method).get("parameters", []):
        if parameter["in"] == location:
            names.add(parameter["name"])
    return names


def test_the_document_has_the_four_operations_and_the_client_no_other():
    documented = set()
    for path, methods in DOCUMENT["paths"].items():
        for method in methods:
            documented.add((path, method.upper()))
    of_the_client = set()
    for value in vars(models).values():
        if isinstance(value, models.Endpoint):
            of_the_client.add((value.path, value.method))

    assert documented == set(OPERATIONS)
    assert of_the_client == set(OPERATIONS)


@pytest.mark.parametrize(
    ("endpoint", "response", "query"),
    [
        (models.LIST_ASSET_DYNAMIC_FIELDS, "AssetDynamicFieldPage", set()),
        (models.CREATE_JOB, "Job", set()),
        (models.LIST_FORMS, "FormPage", set(FORM_FILTERS.values())),
        (models.REGISTER_WEBHOOK, "Webhook", {"description", "object", "eventTypes", "targetURL"}),
    ],
    ids=lambda value: getattr(value, "path", None),
)
def test_the_clients_endpoint_is_the_documents(endpoint, response, query):
    operation = documented_operation(endpoint.path, endpoint.method)
    [success] = [status for status in operation["responses"] if status.startswith("2")]

    assert documented_parameters(endpoint.path, endpoint.method, "query") == query
    headers = documented_parameters(endpoint.path, endpoint.method, "header")
    assert ("X-API-VERSION" in headers) is endpoint.versioned
    content = operation["responses"][success]["content"]["application/json"]["schema"]
    assert content == {"$ref": f"#/components/schemas/{response}"}
    record = SCHEMAS[response]["properties"].get("data", {}).get("items", content)
    assert record == {"$ref": f"#/components/schemas/{endpoint.response.__name__}"}


def test_a_registration_is_sent_in_the_documents_parameters():
    webhook = payloads.WebhookCreate(
        description="d",
        object="jobs",
        event_types=["jobs.created"],
        target_url="https://example.test",
    )

    documented = documented_parameters("/settings/webhooks", "POST", "query")
    assert webhook.query().keys() == documented
    assert SCHEMAS["WebhookObject"]["enum"] == list(get_args(payloads.WebhookObject))


MODELS = {
    "AssetDynamicField": models.AssetDynamicField,
    "AssetDynamicFieldPage": models.Page,
    "AssignedUser": models.AssignedUser,
    "Closed": models.Closed,
    "Completed": models.Completed,
    "CustomerContact": models.CustomerContact,
    "Form": models.Form,
    "FormLinks": models.FormLinks,
    "FormMeta": models.Meta,
    "FormPage": models.Page,
    "Job": models.Job,
    "JobCreate": payloads.JobCreate,
    "JobDetails": models.JobDetails,
    "JobLinks": models.JobLinks,
    "SiteContact": models.SiteContact,
    "Skill": models.Skill,
    "StringPagination": models.Pagination,
    "TypedPagination": models.Pagination,
    "Usage": models.Usage,
    "Value": models.ValueOption,
    "Webhook": models.Webhook,
}


def test_every_record_of_the_document_has_a_model():
    records = {name for name, schema in SCHEMAS.items() if schema.get("type") == "object"}

    # The asset listing's meta is the form listing's without the count.
    assert records - {"AssetMeta"} == set(MODELS)
    assert set(SCHEMAS["AssetMeta"]["properties"]) < set(SCHEMAS["FormMeta"]["properties"])


def types(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows, but null; none where it has no type."""
    if "$ref" in schema:
        _, _, name = schema["$ref"].rpartition("/")
        return types(definitions[name], definitions)

    allowed: set[str] = set()
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            allowed |= types(part, definitions)
    elif isinstance(schema.get("type"), str):
        allowed.add(schema["type"])
    else:
        allowed |= set(schema.get("type", []))
    return allowed - {"null"}


@pytest.mark.parametrize(("name", "model"), MODELS.items(), ids=MODELS)
def test_a_model_has_exactly_the_fields_of_the_document_in_their_types(name, model):
    model_schema = model.model_json_schema(by_alias=True)
    fields = model_schema["properties"]
    fields.pop("extra_fields", None)  # Ours: it is spread into the body.
    documented = SCHEMAS[name]["properties"]

    assert set(fields) == set(documented)
    for field, schema in fields.items():
        allowed = types(schema, model_schema.get("$defs", {}))
        if allowed:
            assert types(documented[field], SCHEMAS) <= allowed, field
