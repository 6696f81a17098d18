from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from typing import Any

import pytest

from fsm_provider.api import errors
from fsm_provider.api.errors import FsmApiError, FsmError, error_class_for

STATUSES = {
    302: errors.FsmRedirectError,
    400: errors.FsmBadRequestError,
    401: errors.FsmUnauthorisedError,
    403: errors.FsmForbiddenError,
    404: errors.FsmNotFoundError,
    405: errors.FsmMethodError,
    409: errors.FsmConflictError,
    418: FsmApiError,
    422: errors.FsmUnprocessableEntityError,
    429: errors.FsmRateLimitedError,
    500: errors.FsmServerError,
    503: errors.FsmServerError,
}
AT = "2026-01-31T08:00:00+00:00"
SUBJECT = {"propertyID": 7, "customerReference": "PO-1"}


def error_for(status: int, **fields: Any) -> FsmApiError:
    error_class = error_class_for(status)
    return error_class(status=status, method="GET", path="/forms", **fields)


def full_error_for(status: int) -> FsmApiError:
    return error_for(status, body_excerpt="no", retry_after=1.5, request_id="r-1")


EVERY_ERROR = [
    FsmError(),
    *map(full_error_for, STATUSES),
    error_for(503),
    errors.FsmInputError("job.notes: bad"),
    errors.FsmConnectionEditedError(401, "POST", "/x"),
    errors.FsmConnectionError("refused"),
    errors.FsmKeyInUseError(409, "POST", "/properties/7/jobs", retry_after=5.0),
    errors.FsmNoLedgerError("connection 'ledger'", "sqlite:////data/ledger.db"),
    errors.FsmNotSentError("the task was stopped"),
    errors.FsmRefusedError("its task is running"),
    errors.FsmResponseError("cut off"),
    errors.FsmPaginationError("endless"),
    errors.FsmPdfUrlError("not a public address"),
    errors.FsmPdfError("too large"),
    errors.FsmNotPdfError("a page"),
    errors.FsmDownloadTimeoutError("too late"),
    errors.FsmStorageError("the disk is full"),
    errors.FsmRegistrationError("other events", webhook_id=5),
    errors.FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", AT, SUBJECT),
    errors.FsmRepeatableWriteError("POST", "/properties/7/jobs", "502", AT, SUBJECT),
    errors.FsmUncertainWriteError("POST", "/settings/webhooks", "500", AT, {}),
]


def test_the_table_holds_every_error():
    public = set()
    for name, value in vars(errors).items():
        is_error = isinstance(value, type) and issubclass(value, FsmError)
        if is_error and not name.startswith("_"):
            public.add(value)

    assert set(map(type, EVERY_ERROR)) == public


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "travel",
    [
        lambda error: type(error)(**json.loads(json.dumps(asdict(error)))),
        lambda error: pickle.loads(pickle.dumps(error)),
    ],
    ids=["json", "pickle"],
)
def test_an_error_comes_back_as_the_same_class_with_the_same_text(error, travel):
    back = travel(error)

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert asdict(back) == asdict(error)


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        *STATUSES.items(),
        (300, errors.FsmRedirectError),
        (399, errors.FsmRedirectError),
    ],
)
def test_a_status_has_its_class_and_every_class_is_an_api_error(status, error_class):
    assert error_class_for(status) is error_class
    assert issubclass(error_class, FsmApiError)


def test_errors_that_need_a_person_are_permanent():
    assert {type(error) for error in EVERY_ERROR if error.permanent} == {
        errors.FsmBadRequestError,
        errors.FsmUnauthorisedError,
        errors.FsmForbiddenError,
        errors.FsmNotFoundError,
        errors.FsmMethodError,
        errors.FsmConflictError,
        errors.FsmUnprocessableEntityError,
        errors.FsmUncertainWriteError,
        errors.FsmInputError,
        errors.FsmNoLedgerError,
        errors.FsmRefusedError,
        errors.FsmPdfUrlError,
        errors.FsmPdfError,
        errors.FsmRegistrationError,
    }


def test_a_response_is_described_with_all_known_facts():
    full = error_for(400, body_excerpt="it is full", retry_after=90.0, request_id="r-1")

    assert str(error_for(400)) == "GET /forms returned HTTP 400"
    assert str(full) == (
        "GET /forms returned HTTP 400; "
        "the service asks to wait 90 s; "
        "request id r-1; "
        "it said: it is full"
    )


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (302, "host"),
        (401, "password"),
        (403, "permission"),
        (404, "host"),
        (409, "exist already"),
    ],
)
def test_an_error_names_the_setting_that_may_cause_it(status, advice):
    assert advice in str(error_for(status))
