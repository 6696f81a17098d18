from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from fsm_provider.api import errors
from fsm_provider.api.errors import (
    FsmApiError,
    FsmBadRequestError,
    FsmConflictError,
    FsmConnectionError,
    FsmDownloadTimeoutError,
    FsmError,
    FsmForbiddenError,
    FsmInputError,
    FsmNotFoundError,
    FsmNotPdfError,
    FsmNotSentError,
    FsmPaginationError,
    FsmPdfError,
    FsmPdfUrlError,
    FsmRateLimitedError,
    FsmRedirectError,
    FsmRegistrationMismatchError,
    FsmRepeatableWriteError,
    FsmResponseError,
    FsmSecretNotStoredError,
    FsmServerError,
    FsmStorageError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
    FsmUnprocessableEntityError,
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
    422: FsmUnprocessableEntityError,
    429: FsmRateLimitedError,
    500: FsmServerError,
    503: FsmServerError,
}
SUBJECT = {"propertyID": 7, "customerReference": "PO-1"}


def error_for(status: int, **fields: Any) -> FsmApiError:
    return error_class_for(status)(status=status, method="GET", path="/forms", **fields)


EVERY_ERROR = [
    FsmError(),
    *[error_for(status, body_excerpt="no", retry_after=1.5, request_id="r-1") for status in STATUSES],
    error_for(503),
    FsmInputError("job.notes: bad"),
    FsmConnectionError("refused"),
    FsmNotSentError("the task was stopped"),
    FsmResponseError("cut off"),
    FsmPaginationError("endless"),
    FsmPdfUrlError("not a public address"),
    FsmPdfError("too large"),
    FsmNotPdfError("a page"),
    FsmDownloadTimeoutError("too late"),
    FsmStorageError("the disk is full"),
    FsmRegistrationMismatchError("other events", webhook_id=5),
    FsmSecretNotStoredError("lost", webhook_id=6),
    FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", "2026-01-31T08:00:00+00:00", SUBJECT),
    FsmRepeatableWriteError("POST", "/properties/7/jobs", "502", "2026-01-31T08:00:00+00:00", SUBJECT),
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
def test_an_error_without_a_response_is_no_api_error(kind):
    assert not issubclass(kind, FsmApiError)


def test_bad_input_is_a_value_error():
    assert issubclass(FsmInputError, ValueError)


def test_errors_that_need_a_person_are_permanent():
    assert {type(error) for error in EVERY_ERROR if error.permanent} == {
        FsmBadRequestError,
        FsmUnauthorisedError,
        FsmForbiddenError,
        FsmNotFoundError,
        FsmConflictError,
        FsmUnprocessableEntityError,
        FsmUncertainWriteError,
        FsmInputError,
        FsmPdfUrlError,
        FsmPdfError,
        FsmRegistrationMismatchError,
        FsmSecretNotStoredError,
    }


def test_a_response_is_described_with_all_known_facts():
    full = error_for(400, body_excerpt="it is full", retry_after=90.0, request_id="r-1")

    assert str(error_for(400)) == "GET /forms returned HTTP 400"
    assert str(full) == (
        "GET /forms returned HTTP 400; the service asks to wait 90 s; request id r-1; it said: it is full"
    )


@pytest.mark.parametrize(
    ("status", "advice"),
    [(302, "host"), (401, "password"), (403, "permission"), (404, "host"), (409, "exist already")],
)
def test_an_error_names_the_setting_that_may_cause_it(status, advice):
    assert advice in str(error_for(status))


def test_an_uncertain_write_names_property_reference_and_time():
    text = str(next(error for error in EVERY_ERROR if getattr(error, "subject", None)))

    named = ("POST /properties/7/jobs", "timeout", "2026-01-31T08:00:00", "propertyID 7", "'PO-1'")
    assert all(part in text for part in named)


def test_an_uncertain_write_claims_no_number_of_attempts():
    text = str(FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", "2026-01-31T08:00:00", {}))

    assert "attempted at 2026-01-31T08:00:00" in text
    assert "once" not in text
