"""The errors of this package.

Their fields are JSON values. None has the token, a secret or a signed URL.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

__all__ = [
    "FsmApiError",
    "FsmBadRequestError",
    "FsmConflictError",
    "FsmConnectionEditedError",
    "FsmConnectionError",
    "FsmDownloadTimeoutError",
    "FsmError",
    "FsmForbiddenError",
    "FsmInputError",
    "FsmKeyInUseError",
    "FsmMethodError",
    "FsmNotFoundError",
    "FsmNotPdfError",
    "FsmNotSentError",
    "FsmPaginationError",
    "FsmPdfError",
    "FsmPdfUrlError",
    "FsmRateLimitedError",
    "FsmRedirectError",
    "FsmRefusedError",
    "FsmRegistrationError",
    "FsmRepeatableWriteError",
    "FsmResponseError",
    "FsmServerError",
    "FsmStorageError",
    "FsmUnauthorisedError",
    "FsmUncertainWriteError",
    "FsmUnprocessableEntityError",
]
IF_NO_FORMS = "if a filter that no form matches gets this response, set no_forms_response to"


@dataclass(eq=False)
class FsmError(Exception):
    """Base of every error of this package."""

    permanent: ClassVar[bool] = False
    """Whether a person has to act. Any other error is transient: a later attempt may succeed."""
    may_have_written: ClassVar[bool] = False
    """Whether the write may have taken effect nevertheless."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pickle make the error of its fields, where it would give them by position."""
        return partial(type(self), **asdict(self)), ()


@dataclass(eq=False)
class _DescribedError(FsmError):
    message: str

    def __str__(self) -> str:
        return self.message


class _PermanentError(_DescribedError):
    permanent = True


class FsmInputError(_PermanentError, ValueError):
    """Invalid input. Nothing was sent; the text names each invalid field."""


class FsmRefusedError(_PermanentError):
    """What a person asked for is refused, and nothing was changed."""


@dataclass(eq=False)
class FsmNoLedgerError(FsmError):
    """There is no ledger yet: the first task that writes makes it.

    :param place: the connection that names its database.
    :param url: of the database, without the password.
    """

    permanent = True

    place: str
    url: str

    def __str__(self) -> str:
        return f"there is no ledger yet at {self.place} ({self.url})"


class FsmNotSentError(_DescribedError):
    """A write was not sent: another attempt may send it."""


class FsmConnectionError(_DescribedError):
    """The service was not reached: refused, no such host, TLS failed, or its host has changed."""


class FsmResponseError(_DescribedError):
    """A response that is incomplete, or not what the specification says."""


class FsmPaginationError(_DescribedError):
    """A listing whose cursors do not lead to its end: ignored, repeated, missing or endless."""


class FsmPdfUrlError(_PermanentError):
    """A form's record lacks the URL or version of its PDF, or its URL is not allowed."""


class FsmPdfError(_PermanentError):
    """A form's PDF is refused, or is not the file that is already stored."""


class FsmStorageError(FsmPdfError):
    """A file could not be read or written: the storage is full, or another object has its path."""

    permanent = False


class FsmNotPdfError(FsmPdfError):
    """The response is not a PDF but, say, a login page. A retry with a fresh URL may help."""

    permanent = False


class FsmDownloadTimeoutError(_DescribedError):
    """The PDF of a form did not arrive within its total time, repeats included."""


@dataclass(eq=False)
class FsmRegistrationError(_PermanentError):
    """A webhook was registered, but not as requested, or its signing secret could not be stored.

    It exists, and cannot be deleted from here. A secret is shown once.
    """

    may_have_written = True

    webhook_id: int


@dataclass(eq=False)
class FsmUncertainWriteError(FsmError):
    """A write that may or may not have taken effect, and is not repeated.

    :param reason: what happened instead of a readable response.
    :param attempted_at: ISO 8601.
    :param subject: what was written, by the service's names, such as ``propertyID``.
    :param body_excerpt: no ledger keeps it, as it may name people.
    :param next_step: what to do once it has been looked up.
    """

    permanent = True
    may_have_written = True
    advice: ClassVar[str] = "is not repeated: look it up in the service before you run it again"

    method: str
    path: str
    reason: str
    attempted_at: str
    subject: dict[str, Any]
    body_excerpt: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        effect = f"{self.method} {self.path} may or may not have taken effect: {self.reason}"
        if self.body_excerpt:
            effect += f"; it said: {self.body_excerpt}"
        attempt = f"It was attempted at {self.attempted_at}"
        if self.subject:
            subject = ", ".join(f"{name} {value!r}" for name, value in self.subject.items())
            attempt += f", with {subject}"
        return f"{effect}. {attempt}, and {self.advice}. {self.next_step}".rstrip()


class FsmRepeatableWriteError(FsmUncertainWriteError):
    """A write that may or may not have taken effect, and that the next attempt may send again."""

    permanent = False
    advice = "may be repeated by the next attempt"


@dataclass(eq=False)
class FsmApiError(FsmError):
    """The service returned an HTTP status that is not a success.

    :param path: without the query; likewise ``url``.
    :param body_excerpt: the start of the body, without the token; may be empty.
    :param retry_after: seconds that the service asks to wait.
    :param request_id: the service's identifier of the request, if it sends one.
    :param connection: the Airflow connection.
    """

    hint: ClassVar[str] = ""

    status: int
    method: str
    path: str
    body_excerpt: str = ""
    retry_after: float | None = None
    request_id: str | None = None
    url: str = ""
    connection: str = ""

    def __str__(self) -> str:
        parts = [f"{self.method} {self.path} returned HTTP {self.status}"]
        if self.hint:
            parts.append(self.hint)
        may_be_wrongly_connected = self.status in (401, 403, 404)
        if self.connection and may_be_wrongly_connected:
            parts.append(f"connection '{self.connection}'")
        if self.retry_after is not None:
            parts.append(f"the service asks to wait {self.retry_after:g} s")
        if self.request_id:
            parts.append(f"request id {self.request_id}")
        if self.body_excerpt:
            parts.append(f"it said: {self.body_excerpt}")
        return "; ".join(parts)


class FsmRedirectError(FsmApiError):
    """3xx. A redirect is never followed, since the token would go with it."""

    hint = "redirects are not followed: set the connection's host to the final URL"


class _PermanentApiError(FsmApiError):
    permanent = True


class FsmBadRequestError(_PermanentApiError):
    """400 Bad request."""


class FsmUnauthorisedError(_PermanentApiError):
    """401 Unauthorised."""

    hint = "the token is not accepted: check the connection's password"


class FsmConnectionEditedError(FsmUnauthorisedError):
    """401 Unauthorised, and the connection leads to another service by now.

    Another attempt goes there.
    """

    permanent = False
    hint = "the token is not accepted here, and the connection leads to another service now"


class FsmForbiddenError(_PermanentApiError):
    """403 Forbidden."""

    hint = "the token lacks the permission, or a proxy or firewall refused the request"


class FsmNotFoundError(_PermanentApiError):
    """404 Not found."""

    def __str__(self) -> str:
        place = f" at {self.url}" if self.url else ""
        hint = f"; {IF_NO_FORMS} 404" if self.path == "/forms" else ""
        return (
            f"{super().__str__()}; there is nothing{place}: "
            f"check the identifier in the path, and the base path in the connection's host{hint}"
        )


class FsmMethodError(_PermanentApiError):
    """405 Method not allowed."""

    hint = "the path does not take this method: check method and path"


class FsmConflictError(_PermanentApiError):
    """409 Conflict. What was to be written may already exist, through another request."""

    hint = "what was to be written may exist already: look it up in the service"


class FsmKeyInUseError(FsmApiError):
    """409 Conflict with Retry-After: an earlier request has the same idempotency key.

    It is still at work, so the write may take effect.
    """

    may_have_written = True
    hint = "an earlier request with this idempotency key is still at work"


class FsmUnprocessableEntityError(_PermanentApiError):
    """422 Unprocessable entity."""


class FsmRateLimitedError(FsmApiError):
    """429 Too many requests."""


class FsmServerError(FsmApiError):
    """5xx."""


_CLASSES = {
    400: FsmBadRequestError,
    401: FsmUnauthorisedError,
    403: FsmForbiddenError,
    404: FsmNotFoundError,
    405: FsmMethodError,
    409: FsmConflictError,
    422: FsmUnprocessableEntityError,
    429: FsmRateLimitedError,
}


_TIMEOUTS = (408, 444, 460, 499)
"""Of a server or load balancer, whose backend may have carried on."""


def is_refusal(status: int) -> bool:
    """Return whether an HTTP status means that the request was not carried out."""
    return 400 <= status < 500 and status not in _TIMEOUTS


def error_class_for(status: int) -> type[FsmApiError]:
    if status >= 500:
        return FsmServerError
    if 300 <= status < 400:
        return FsmRedirectError
    return _CLASSES.get(status, FsmApiError)
