from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from fsm_provider.api import errors
from fsm_provider.api.errors import (
    FsmAddressError,
    FsmApiError,
    FsmBadRequestError,
    FsmConflictError,
    FsmConnectionError,
    FsmError,
    FsmFileError,
    FsmForbiddenError,
    FsmInputError,
    FsmNotFoundError,
    FsmNotPdfError,
    FsmPaginationError,
    FsmRateLimitedError,
    FsmRedirectError,
    FsmRegistrationMismatchError,
    FsmResponseError,
    FsmSecretLostError,
    FsmServerError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
    error_class_for,
    error_from_dict,
)

STATUSES = {
    302: FsmRedirectError,
    400: FsmBadRequestError,
    401: FsmUnauthorisedError,
    403: FsmForbiddenError,
    404: FsmNotFoundError,
    409: FsmConflictError,
    418: FsmApiError,
    429: FsmRateLimitedError,
    500: FsmServerError,
    503: FsmServerError,
}
SUBJECT = {"propertyID": 7, "customerReference": "PO-1"}


def answered(status: int, **fields: Any) -> FsmApiError:
    return error_class_for(status)(status=status, method="GET", path="/forms", **fields)


EVERY_ERROR = [
    FsmError(),
    *[answered(status, body_excerpt="no", retry_after=1.5, request_id="r-1") for status in STATUSES],
    answered(503),
    FsmInputError("job.notes: bad"),
    FsmConnectionError("refused"),
    FsmResponseError("cut off"),
    FsmPaginationError("endless"),
    FsmAddressError("not a public address"),
    FsmFileError("too large"),
    FsmNotPdfError("a page"),
    FsmRegistrationMismatchError("other events", webhook_id=5),
    FsmSecretLostError("lost", webhook_id=6),
    FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", "2026-01-31T08:00:00+00:00", SUBJECT),
    FsmUncertainWriteError("POST", "/settings/webhooks", "500", "2026-01-31T08:00:00+00:00", {}),
]
over_every_error = pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)


def test_the_table_holds_every_error():
    public = {
        kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, FsmError) and not name.startswith("_")
    }

    assert {type(error) for error in EVERY_ERROR} == public


@over_every_error
@pytest.mark.parametrize(
    "travel",
    [
        lambda error: error_from_dict(json.loads(json.dumps(error.as_dict()))),
        lambda error: pickle.loads(pickle.dumps(error)),
    ],
    ids=["json", "pickle"],
)
def test_an_error_comes_back_as_the_same_class_with_the_same_text(error, travel):
    back = travel(error)

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.as_dict() == error.as_dict()


@over_every_error
def test_every_error_can_be_hashed(error):
    hash(error)


@pytest.mark.parametrize(
    "data", [{"type": "FsmNoSuchError"}, {"type": "ValueError"}, {"type": "Any"}, {"type": None}]
)
def test_what_describes_no_error_of_ours_is_refused(data):
    with pytest.raises(ValueError, match="is not an error of this package"):
        error_from_dict(data)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *STATUSES.items(),
        (300, FsmRedirectError),
        (399, FsmRedirectError),
        (422, FsmApiError),
        (599, FsmServerError),
    ],
)
def test_a_status_has_its_class_and_every_class_is_an_api_error(status, kind):
    assert error_class_for(status) is kind
    assert issubclass(kind, FsmApiError)


@pytest.mark.parametrize(
    "kind",
    [FsmInputError, FsmConnectionError, FsmResponseError, FsmPaginationError, FsmUncertainWriteError],
)
def test_an_error_without_an_answer_is_no_api_error(kind):
    assert not issubclass(kind, FsmApiError)


def test_bad_input_is_a_value_error():
    assert issubclass(FsmInputError, ValueError)


def test_only_what_cannot_get_better_by_itself_is_permanent():
    assert {type(error) for error in EVERY_ERROR if error.permanent} == {
        FsmBadRequestError,
        FsmUnauthorisedError,
        FsmForbiddenError,
        FsmNotFoundError,
        FsmConflictError,
        FsmUncertainWriteError,
        FsmInputError,
        FsmAddressError,
        FsmFileError,
        FsmRegistrationMismatchError,
        FsmSecretLostError,
    }


def test_an_answer_is_described_with_all_that_is_known_of_it():
    full = answered(409, body_excerpt="it is full", retry_after=90.0, request_id="r-1")

    assert str(answered(409)) == "GET /forms was answered 409"
    assert str(full) == (
        "GET /forms was answered 409; the service asks to wait 90 s; request id r-1; it said: it is full"
    )


@pytest.mark.parametrize(
    ("status", "advice"), [(302, "host"), (401, "password"), (403, "permission"), (404, "host")]
)
def test_an_answer_that_a_setting_may_cause_names_it(status, advice):
    assert advice in str(answered(status))


def test_an_uncertain_write_names_property_reference_and_time():
    text = str(next(error for error in EVERY_ERROR if getattr(error, "subject", None)))

    named = ("POST /properties/7/jobs", "timeout", "2026-01-31T08:00:00", "propertyID 7", "'PO-1'")
    assert all(part in text for part in named)
