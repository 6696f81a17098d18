"""What can go wrong with the service, one class per answer that a caller would give to it.

The fields of every error are JSON values, so that one met in the triggerer is raised in the task
as the same class with the same text. None of them holds the token, a secret or a signed address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


def in_words(subject: Mapping[str, Any]) -> str:
    """Say what a write is about: ``propertyID 7, customerReference 'PO-1'``."""
    return ", ".join(f"{name} {value!r}" for name, value in subject.items())


@dataclass(eq=False)
class FsmError(Exception):
    """Base of every error that talking to the service raises."""

    permanent: ClassVar[bool] = False
    """Whether another try is of no use until a person has changed something."""
    may_have_written: ClassVar[bool] = False
    """Whether what was to be written may exist all the same."""

    def __reduce__(self) -> tuple[Any, ...]:
        return error_from_dict, (self.as_dict(),)

    def as_dict(self) -> dict[str, Any]:
        """Give the class name as ``type`` and the fields beside it; ``error_from_dict`` undoes it."""
        return {"type": type(self).__name__, **asdict(self)}


@dataclass(eq=False)
class _DescribedError(FsmError):
    message: str

    def __str__(self) -> str:
        return self.message


class FsmInputError(_DescribedError, ValueError):
    """What the caller gave cannot be sent. Nothing was; the text names each field."""

    permanent = True


class FsmConnectionError(_DescribedError):
    """The service was not reached: refused, no such host, TLS failed. Nothing was sent."""


class FsmResponseError(_DescribedError):
    """An answer to a read that cannot be read as what the specification says, or never came whole."""


class FsmPaginationError(_DescribedError):
    """A listing whose cursors do not lead to its end (2.5): ignored, repeated, missing, endless."""


class FsmAddressError(_DescribedError):
    """A form's record does not say where its PDF is or which version, or names what nothing is sent to."""

    permanent = True


class FsmFileError(_DescribedError):
    """What came as the PDF of a form is not kept, or is not the file that is there."""

    permanent = True


class FsmNotPdfError(FsmFileError):
    """What came is no PDF but, say, a page that asks to log in. Another address may mend it."""

    permanent = False


@dataclass(eq=False)
class FsmRegistrationMismatchError(_DescribedError):
    """A webhook was registered, but not as asked (4.4). It exists, and cannot be deleted from here.

    :param webhook_id: the identifier of the registration.
    """

    permanent = True
    may_have_written = True

    webhook_id: int


@dataclass(eq=False)
class FsmSecretLostError(_DescribedError):
    """A webhook was registered (4.4), and its signing secret, which is shown once, could not be kept.

    :param webhook_id: the identifier of the registration.
    """

    permanent = True
    may_have_written = True

    webhook_id: int


@dataclass(eq=False)
class FsmUncertainWriteError(FsmError):
    """A write that may or may not have happened. It was sent once and is not repeated.

    :param method: the HTTP method.
    :param path: the path, without the query.
    :param reason: what came instead of a readable answer.
    :param attempted_at: when it was sent, ISO 8601.
    :param subject: what was to be written, as the service names it, e.g. ``{"propertyID": 7,
        "customerReference": "PO-1"}``.
    """

    permanent = True
    may_have_written = True

    method: str
    path: str
    reason: str
    attempted_at: str
    subject: dict[str, Any]

    def __str__(self) -> str:
        subject = in_words(self.subject)
        return (
            f"{self.method} {self.path} may or may not have taken effect: {self.reason}. "
            f"It was sent once, at {self.attempted_at}{f', with {subject}' if subject else ''}, and "
            "is not repeated: look it up in the service before you run it again."
        )


@dataclass(eq=False)
class FsmApiError(FsmError):
    """The service answered with a status that is not a success (section 7).

    :param status: the HTTP status.
    :param method: the HTTP method.
    :param path: the path, without the query.
    :param body_excerpt: the start of the body, the token taken out; may be empty.
    :param retry_after: seconds that the service asks to wait.
    :param request_id: the service's own identifier of the request, where it gives one.
    """

    hint: ClassVar[str] = ""

    status: int
    method: str
    path: str
    body_excerpt: str = ""
    retry_after: float | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        parts = [f"{self.method} {self.path} was answered {self.status}"]
        if self.hint:
            parts.append(self.hint)
        if self.retry_after is not None:
            parts.append(f"the service asks to wait {self.retry_after:g} s")
        if self.request_id:
            parts.append(f"request id {self.request_id}")
        if self.body_excerpt:
            parts.append(f"it said: {self.body_excerpt}")
        return "; ".join(parts)


class FsmRedirectError(FsmApiError):
    """3xx. A redirect is never followed, since the token would go with it."""

    hint = "redirects are not followed: set the connection's host to the final address"


class FsmBadRequestError(FsmApiError):
    """400 Bad request."""

    permanent = True


class FsmUnauthorisedError(FsmApiError):
    """401 Unauthorised."""

    permanent = True
    hint = "the token is not accepted: check the connection's password"


class FsmForbiddenError(FsmApiError):
    """403 Forbidden."""

    permanent = True
    hint = "the token lacks the permission"


class FsmNotFoundError(FsmApiError):
    """404 Not found."""

    permanent = True
    hint = "check the path's identifier and the connection's host"


class FsmConflictError(FsmApiError):
    """409 Conflict."""

    permanent = True


class FsmRateLimitedError(FsmApiError):
    """429 Too many requests."""


class FsmServerError(FsmApiError):
    """5xx."""


_BY_STATUS: Mapping[int, type[FsmApiError]] = {
    400: FsmBadRequestError,
    401: FsmUnauthorisedError,
    403: FsmForbiddenError,
    404: FsmNotFoundError,
    409: FsmConflictError,
    429: FsmRateLimitedError,
}


def error_class_for(status: int) -> type[FsmApiError]:
    """Choose the error class of an HTTP status that is not a success."""
    if 300 <= status < 400:
        return FsmRedirectError
    if status >= 500:
        return FsmServerError
    return _BY_STATUS.get(status, FsmApiError)


def error_from_dict(data: Mapping[str, Any]) -> FsmError:
    """Rebuild the error that :meth:`FsmError.as_dict` described."""
    fields = dict(data)
    error = globals().get(fields.pop("type"))
    if not (isinstance(error, type) and issubclass(error, FsmError)):
        raise ValueError(f"{data.get('type')!r} is not an error of this package")
    return error(**fields)
