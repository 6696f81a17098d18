"""Whether an error, or any exception behind it, holds a secret."""

import pickle
from collections.abc import Iterator
from contextlib import suppress

from tests.unit.conftest import TOKEN

SECRET = "hush-hush-7f3a"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, suppressed ones too."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def assert_holds_no_secret(error: BaseException) -> None:
    for exception in chain(error):
        held = f"{exception} {exception!r} {exception.args} {vars(exception)}"
        with suppress(TypeError, AttributeError, pickle.PicklingError):
            held += pickle.dumps(exception).decode("latin-1")
        with suppress(AttributeError):
            held += str(exception.errors())
        with suppress(AttributeError):
            held += f"{exception.request.headers} {exception.request.url}"
        assert TOKEN not in held
        assert SECRET not in held
