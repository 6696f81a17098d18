from __future__ import annotations

import pytest

from fsm_provider.api.endpoints import CREATE_JOB, LIST_ASSET_DYNAMIC_FIELDS, LIST_FORMS, REGISTER_WEBHOOK
from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.models import AssetDynamicField, Form, Job, Webhook


@pytest.mark.parametrize(
    ("endpoint", "method", "path", "response", "success"),
    [
        (LIST_ASSET_DYNAMIC_FIELDS, "GET", "/assetDynamicFieldValues", AssetDynamicField, 200),
        (CREATE_JOB, "POST", "/properties/{propertyID}/jobs", Job, 201),
        (LIST_FORMS, "GET", "/forms", Form, 200),
        (REGISTER_WEBHOOK, "POST", "/settings/webhooks", Webhook, 200),
    ],
)
def test_an_operation_is_the_specified_one(endpoint, method, path, response, success):
    assert (endpoint.method, endpoint.path) == (method, path)
    assert (endpoint.response, endpoint.success) == (response, success)
    assert endpoint.versioned is (endpoint is CREATE_JOB)


def test_the_parameters_of_the_form_listing_have_the_specified_names():
    assert set(LIST_FORMS.parameters.values()) == {
        "createdByType",
        "createdByID",
        "createdOnDateTime[gte]",
        "lastUpdatedOnDateTime[gte]",
        "formCategory",
        "formNameID",
        "propertyID",
        "jobID",
    }


@pytest.mark.parametrize(
    ("identifier", "segment"),
    [(7, "7"), ("7", "7"), ("a/b", "a%2Fb"), ("a?b#c", "a%3Fb%23c"), ("é %", "%C3%A9%20%25"), ("...", "...")],
)
def test_an_identifier_stays_one_segment_of_the_path(identifier, segment):
    assert CREATE_JOB.path_for(propertyID=identifier) == f"/properties/{segment}/jobs"


@pytest.mark.parametrize("identifier", [None, "", " ", True, 1.5, ".", "..", " .. ", "None"])
def test_a_path_is_not_filled_with_what_is_no_identifier(identifier):
    with pytest.raises(FsmInputError, match=r"^propertyID: "):
        CREATE_JOB.path_for(propertyID=identifier)
