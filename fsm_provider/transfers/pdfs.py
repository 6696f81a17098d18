"""Stores the PDFs of many forms, several at once, each version once, with an outcome for each."""

from __future__ import annotations

import logging
import posixpath
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, get_args
from urllib.parse import quote

from fsm_provider.api.errors import (
    FsmApiError,
    FsmDownloadTimeoutError,
    FsmError,
    FsmInputError,
    FsmNotPdfError,
    FsmPdfError,
    FsmPdfUrlError,
    FsmStorageError,
)
from fsm_provider.api.forms import FormFilter, job_id_from, parse_forms
from fsm_provider.api.models import Form
from fsm_provider.api.retry import REPEATABLE
from fsm_provider.api.validation import JsonObject, parse_identifier, pluralize
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.base import fail_in_part
from fsm_provider.storage import report_read

if TYPE_CHECKING:
    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.storage import AtomicFiles

logger: logging.Logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 20
"""After so many transient failures in a row, no further form is tried."""


class _StoppedError(Exception):
    """The task is stopping: downloads under way are abandoned."""


Outcome = Literal["stored", "skipped", "failed", "not_tried"]
"""What became of a form's PDF; ``skipped`` was stored before."""


@dataclass
class _Item:
    """One of the forms that were given, and what became of its PDF.

    :ivar name: of its file: the path in the folder; None while the file is not stored.
    :ivar size: bytes that were stored.
    """

    form: Form
    outcome: Outcome = "not_tried"
    name: str | None = None
    size: int = 0
    error: FsmError | None = None

    def fail(self, error: FsmError) -> None:
        self.outcome = "failed"
        self.error = error

    @property
    def needs_lookup(self) -> bool:
        """Whether its URL may be the cause: missing, expired or refused."""
        if isinstance(self.error, FsmPdfUrlError | FsmNotPdfError):
            return True
        return isinstance(self.error, FsmApiError) and not isinstance(self.error, REPEATABLE)

    def log(self) -> None:
        if self.error:
            logger.error("Form %s %s: %s", self.form.id, self.outcome, self.error)
        else:
            logger.info("Form %s %s: %s", self.form.id, self.outcome, self.name)


class PdfTransfer:
    """Stores the PDFs of forms.

    The operator makes one in the task's thread and calls ``run``, which returns once no download is
    under way. Each file is fetched and stored by a thread of a pool. A form whose URL is missing,
    has expired or is refused is looked up in the listing, repeatedly as long as that helps. Airflow
    may call ``interrupt`` at any time: downloads under way are then abandoned, and ``run`` returns.
    Where files are missing in its result, the operator calls ``fail``.

    :param forms: references to forms, records of forms, or bare identifiers.
    :param limits: for each PDF.
    :raises FsmInputError: naming the first of ``forms`` that is not a form.
    """

    def __init__(
        self,
        forms: Any,
        fsm_conn_id: str,
        files: AtomicFiles,
        *,
        max_concurrency: int,
        **limits: Unpack[PdfLimits],
    ) -> None:
        self._hook = FsmHook(fsm_conn_id, sleep=self._sleep)
        timezone = self._hook.client.settings.server_timezone
        self._items = [_Item(form) for form in parse_forms(forms, timezone)]
        self._files = files
        self._concurrency = max_concurrency
        self._limits = limits
        self._stopping = Event()
        self._failures_in_a_row = 0
        self.interrupted: bool = False
        """Whether :meth:`interrupt` was called. Failures in a row stop it, but do not call that."""

    def run(self) -> JsonObject:
        """Store the files; return the operator's result once no download is under way."""
        self._store_all(self._items)
        remaining = [item for item in self._items if item.needs_lookup]
        while remaining and not self._stopping.is_set():
            listed = self._look_up(remaining)
            self._store_all(listed)
            remaining = [item for item in listed if item.needs_lookup]
            if len(remaining) == len(listed):
                break
        for item in remaining:  # which _store has not logged
            item.log()
        report_read(self._hook, "forms")
        logger.info(self._summary())
        folder = self._files.folder
        return {
            "paths": [str(folder / item.name) if item.name else None for item in self._items],
            **self._count(),
            "bytes": self._stored_bytes(),
        }

    def interrupt(self) -> None:
        self.interrupted = True
        self._stopping.set()

    def fail(self) -> NoReturn:
        """Fail the task with the errors, for a retry where that could store what is missing."""
        failures = []
        transient_error = None
        for index, item in enumerate(self._items):
            if item.error is None:
                continue
            failures.append(f"forms[{index}]: {item.error}")
            if not item.error.permanent:
                transient_error = item.error
        fail_in_part(
            self._summary(),
            failures,
            all_are_in="the log",
            retry=transient_error is not None or self._count()["not_tried"] > 0,
            transient_error=transient_error,
        )

    def _count(self) -> dict[str, int]:
        """Return the number of items by their outcome."""
        outcomes = [item.outcome for item in self._items]
        return {outcome: outcomes.count(outcome) for outcome in get_args(Outcome)}

    def _stored_bytes(self) -> int:
        """Return how many bytes were stored; several items may be of one file."""
        sizes = {item.name: item.size for item in self._items if item.size}
        return sum(sizes.values())

    def _summary(self) -> str:
        numbers = self._count().items()
        parts = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in numbers if number]
        outcomes = ", ".join(parts) or "nothing to do"
        number_of_pdfs = pluralize(len(self._items), "PDF")
        return f"{number_of_pdfs}: {outcomes}; {self._stored_bytes():,} bytes"

    def _store_all(self, items: list[_Item]) -> None:
        """Store the files of items, several at once, and each file once."""
        items_by_name = defaultdict(list)
        for item in items:
            try:
                items_by_name[path_for(item.form)].append(item)
            except FsmPdfUrlError as error:
                item.fail(error)
        stored_before = self._stored_before(items_by_name)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="fsm-pdf") as pool:
            try:
                futures = [
                    pool.submit(self._store, name, its_items, name in stored_before)
                    for name, its_items in items_by_name.items()
                ]
                for future in futures:
                    future.result()
            except BaseException:
                self.interrupt()
                raise

    def _stored_before(self, names: Collection[str]) -> set[str]:
        """Return which of these files are there, from one listing of the folder they all are in."""
        if not names:
            return set()
        folder = self._files.folder
        file_system = folder.fs
        parent = folder / posixpath.commonpath([posixpath.dirname(name) for name in names])
        file_system.invalidate_cache()  # others write there too
        paths = set(file_system.find(parent.path))
        strip = file_system._strip_protocol
        return {name for name in names if strip((folder / name).path) in paths}

    def _store(self, name: str, items: list[_Item], is_stored: bool) -> None:
        """Store a file, unless it is stored, and set the outcome of its items."""
        if self._stopping.is_set():
            return
        error = None
        size = 0
        try:
            if not is_stored:
                size = self._fetch(name, _form_with_url(items))
        except _StoppedError:
            return
        except FsmError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - each storage's library has errors of its own
            text = f"form {items[0].form.id}: {name}: {type(failure).__name__}: {failure}"
            error = FsmStorageError(text)
        for item in items:
            if error:
                item.fail(error)
                continue
            item.outcome = "skipped" if is_stored else "stored"
            item.name = name
            item.size = size
            item.error = None
        if not items[0].needs_lookup:  # else run logs it, once no lookup helps any more
            items[0].log()
        self._count_failure(error)

    def _fetch(self, name: str, form: Form) -> int:
        """Store a form's PDF; return its size in bytes."""

        def store(chunks: Iterator[bytes]) -> int:
            return self._files.store(name, self._until_stopped(chunks))

        return self._hook.client.download_pdf(form, store, **self._limits)

    def _until_stopped(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._stopping.is_set():
                raise _StoppedError
            yield chunk

    def _count_failure(self, error: FsmError | None) -> None:
        """Stop after many transient failures in a row."""
        if not isinstance(error, REPEATABLE | FsmDownloadTimeoutError):
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        is_enough = self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW  # others count meanwhile
        if is_enough and not self._stopping.is_set():
            logger.error("%s transient failures in a row: no more are tried", MAX_FAILURES_IN_A_ROW)
            self._stopping.set()

    def _look_up(self, items: list[_Item]) -> list[_Item]:
        """Look items up in the listing; return those that are there, with their current records."""
        forms = [item.form for item in items]
        wanted = FormFilter(  # that matches these forms and as few others as possible
            property_id=_common_identifier([form.property_id for form in forms]),
            job_id=_common_identifier([job_id_from(form) for form in forms]),
            updated_since=_earliest_update(forms),
        )
        logger.info("Looking up %s in the listing (%s)", pluralize(len(items), "form"), wanted)
        not_listed = defaultdict(list)
        for item in items:
            not_listed[item.form.id].append(item)
        failure = None
        try:
            for form in self._hook.client.list_forms(**wanted.as_dict()):
                for item in not_listed.pop(form.id, []):
                    item.form = form
                if not not_listed:
                    break
        except _StoppedError:
            return []
        except FsmError as error:
            failure = error
        listed = []
        for item in items:
            if item.form.id not in not_listed:
                listed.append(item)
                continue
            absent = f"form {item.form.id} is not in the listing ({wanted})"
            item.fail(failure or FsmPdfError(absent))
            item.log()
        return listed

    def _sleep(self, seconds: float) -> None:
        """Wait before a request, as ``time.sleep`` does, unless the task is stopping."""
        if self._stopping.wait(seconds):
            raise _StoppedError


def _form_with_url(items: list[_Item]) -> Form:
    """Return a form of these, all with one version, that has the URL of its PDF, if one has it."""
    for item in items:
        if item.form.form_pdf_url:
            return item.form
    return items[0].form


def path_for(form: Form) -> str:
    """Return the path of a form's PDF, another one for each version; values are percent-encoded.

    :raises FsmPdfUrlError: for a form without a readable version.
    """
    updated = _utc(form.last_updated_on_date_time)
    if updated is None:
        raise FsmPdfUrlError(f"form {form.id}: its record has no readable lastUpdatedOnDateTime")
    property_id = _in_path(form.property_id)
    job_id = _in_path(job_id_from(form))
    return f"property={property_id}/job={job_id}/form={form.id}/v={updated:%Y-%m-%dT%H%M%S.%fZ}.pdf"


def _in_path(identifier: Any) -> str:
    text = "unknown" if identifier in (None, "") else str(identifier)
    return quote(text, safe="", errors="backslashreplace")


def _utc(value: Any) -> datetime | None:
    """Return a time in UTC; None if it is no time, or beyond the calendar there."""
    if not isinstance(value, datetime):
        return None
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return None


def _earliest_update(forms: list[Form]) -> datetime | None:
    """Return when the first of these forms was updated; None if one has no readable time."""
    times = []
    for form in forms:
        updated = _utc(form.last_updated_on_date_time)
        if updated is None:
            return None
        times.append(updated)
    return min(times)


def _common_identifier(values: list[Any]) -> int | str | None:
    """Return the value of all; None if they differ, or it is no identifier."""
    first = values[0]
    if any(value != first for value in values):
        return None
    try:
        return parse_identifier("", first)
    except FsmInputError:
        return None
