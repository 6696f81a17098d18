"""Stores the PDFs of many forms, several at once, each version once, with an outcome for each."""

from __future__ import annotations

import logging
import posixpath
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack
from urllib.parse import quote

from fsm_provider.api import errors
from fsm_provider.api.forms import FormFilter, job_id_from, parse_forms
from fsm_provider.api.models import Form
from fsm_provider.api.retry import REPEATABLE
from fsm_provider.api.validation import parse_identifier, pluralize
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.base import fail_in_part
from fsm_provider.storage import report, uri_for_records

if TYPE_CHECKING:
    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.storage import AtomicFiles

logger: logging.Logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 20
"""After so many transient failures in a row, no further form is tried."""


class _StoppedError(Exception):
    """The task is stopping: downloads under way are abandoned."""


@dataclass
class _Item:
    form: Form
    outcome: Literal["stored", "skipped", "failed", "not_tried"] = "not_tried"
    name: str | None = None
    size: int = 0
    error: errors.FsmError | None = None

    def fail(self, error: errors.FsmError) -> None:
        self.outcome, self.error = "failed", error

    @property
    def needs_lookup(self) -> bool:
        """Whether its URL may be the cause: missing, expired or refused."""
        return isinstance(self.error, errors.FsmPdfUrlError | errors.FsmNotPdfError) or (
            isinstance(self.error, errors.FsmApiError) and not isinstance(self.error, REPEATABLE)
        )

    def log(self) -> None:
        level, what = (logging.ERROR, self.error) if self.error else (logging.INFO, self.name)
        logger.log(level, "Form %s %s: %s", self.form.id, self.outcome, what)


class PdfTransfer:
    """Stores the PDFs of forms.

    A form whose URL is missing, has expired or is refused is looked up in the listing, repeatedly
    as long as that helps.

    :param forms: references to forms, records of forms, or bare identifiers.
    :param limits: for each PDF.
    :raises errors.FsmInputError: naming the first of ``forms`` that is not a form.
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
        self._items = [
            _Item(form) for form in parse_forms(forms, self._hook.client.settings.server_timezone)
        ]
        self._files = files
        self._concurrency = max_concurrency
        self._limits = limits
        self._stopping = Event()
        self._failures_in_a_row = 0
        self.interrupted: bool = False
        """Whether :meth:`interrupt` was called, or an unexpected error stopped it."""

    def run(self) -> dict[str, Any]:
        """Store the files; return the operator's result once no download is under way."""
        self._store_all(self._items)
        remaining = [item for item in self._items if item.needs_lookup]
        while remaining and not self._stopping.is_set():
            listed = self._look_up(remaining)
            self._store_all(listed)
            remaining = [item for item in listed if item.needs_lookup]
            if len(remaining) == len(listed):
                break
        for item in remaining:
            item.log()
        report(self._hook, inputs=[uri_for_records(self._hook.fsm_conn_id, "forms")])
        logger.info(self._summary())
        folder = self._files.folder
        paths = [str(folder / item.name) if item.name else None for item in self._items]
        return {"paths": paths, **self._counts()}

    def interrupt(self) -> None:
        self.interrupted = True
        self._stopping.set()

    def fail(self) -> NoReturn:
        """Fail the task with the errors, for a retry where that could store what is missing."""
        passing = [item.error for item in self._items if item.error and not item.error.permanent]
        fail_in_part(
            self._summary(),
            [
                f"forms[{index}]: {item.error}"
                for index, item in enumerate(self._items)
                if item.error
            ],
            all_are_in="the log",
            retry=bool(passing) or any(item.outcome == "not_tried" for item in self._items),
            passing_error=passing[-1] if passing else None,
        )

    def _counts(self) -> dict[str, int]:
        outcomes = Counter[str](item.outcome for item in self._items)
        return {
            **{
                outcome: outcomes[outcome]
                for outcome in ("stored", "skipped", "failed", "not_tried")
            },
            "bytes": sum({item.name: item.size for item in self._items if item.size}.values()),
        }

    def _summary(self) -> str:
        counts = self._counts()
        size = counts.pop("bytes")
        parts = [
            f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items() if number
        ]
        done = ", ".join(parts) or "nothing to do"
        return f"{pluralize(len(self._items), 'PDF')}: {done}; {size:,} bytes"

    def _store_all(self, items: list[_Item]) -> None:
        by_name: dict[str, list[_Item]] = defaultdict(list)
        for item in items:
            try:
                by_name[path_for(item.form)].append(item)
            except errors.FsmPdfUrlError as error:
                item.fail(error)
        there = self._already_there(by_name)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="fsm-pdf") as pool:
            try:
                works = [
                    pool.submit(self._process, one, some, one in there)
                    for one, some in by_name.items()
                ]
                for work in works:
                    work.result()
            except BaseException:
                self.interrupt()
                raise

    def _already_there(self, names: Collection[str]) -> set[str]:
        """Return which of these files are stored, from one listing of the folder that they have in
        common.
        """
        if not names:
            return set()
        folder = self._files.folder
        files = folder.fs
        paths = {files._strip_protocol((folder / name).path): name for name in names}
        parent = folder / posixpath.commonpath([posixpath.dirname(name) for name in names])
        files.invalidate_cache()  # others write there too
        return {paths[path] for path in paths.keys() & set(files.find(parent.path))}

    def _process(self, name: str, same: list[_Item], is_there: bool) -> None:
        if self._stopping.is_set():
            return
        form = max((item.form for item in same), key=lambda form: bool(form.form_pdf_url))
        error: errors.FsmError | None = None
        size = 0
        try:
            if not is_there:
                size = self._fetch(name, form)
        except _StoppedError:
            return
        except errors.FsmError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - each storage's library has errors of its own
            error = errors.FsmStorageError(
                f"form {form.id}: {name}: {type(caught).__name__}: {caught}"
            )
        for item in same:
            if error:
                item.fail(error)
            else:
                item.outcome = "skipped" if is_there else "stored"
                item.name, item.size, item.error = name, size, None
        if not same[0].needs_lookup:
            same[0].log()
        self._stop_after_failures(error)

    def _fetch(self, name: str, form: Form) -> int:
        return self._hook.client.download_pdf(
            form,
            lambda chunks: self._files.store(name, self._until_stopped(chunks)),
            **self._limits,
        )

    def _until_stopped(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._stopping.is_set():
                raise _StoppedError
            yield chunk

    def _stop_after_failures(self, error: errors.FsmError | None) -> None:
        transient = isinstance(error, REPEATABLE | errors.FsmDownloadTimeoutError)
        self._failures_in_a_row = self._failures_in_a_row + 1 if transient else 0
        if self._failures_in_a_row == MAX_FAILURES_IN_A_ROW:
            logger.error("%s transient failures in a row: no more are tried", MAX_FAILURES_IN_A_ROW)
            self._stopping.set()

    def _look_up(self, items: list[_Item]) -> list[_Item]:
        """Replace the records of those in the listing by their current ones; return these items."""
        wanted = _narrowest([item.form for item in items])
        logger.info("Looking up %s in the listing (%s)", pluralize(len(items), "form"), wanted)
        missing: dict[int, list[_Item]] = defaultdict(list)
        for item in items:
            missing[item.form.id].append(item)
        failure: errors.FsmError | None = None
        try:
            for form in self._hook.list_forms(**wanted.as_dict()):
                for item in missing.pop(form.id, ()):
                    item.form = form
                if not missing:
                    break
        except _StoppedError:
            return []
        except errors.FsmError as error:
            failure = error
        for item in items:
            if item.form.id in missing:
                absent = f"form {item.form.id} is not in the listing ({wanted})"
                item.fail(failure or errors.FsmPdfError(absent))
                item.log()
        return [item for item in items if item.form.id not in missing]

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _StoppedError


def path_for(form: Form) -> str:
    """Return the path of a form's PDF, another one for each version; values are percent-encoded.

    :raises errors.FsmPdfUrlError: for a form without a readable version.
    """
    if (updated := _utc(form.last_updated_on_date_time)) is None:
        raise errors.FsmPdfUrlError(
            f"form {form.id}: its record has no readable lastUpdatedOnDateTime"
        )
    property_id, job_id = (
        quote("unknown" if value in (None, "") else str(value), safe="", errors="backslashreplace")
        for value in (form.property_id, job_id_from(form))
    )
    return f"property={property_id}/job={job_id}/form={form.id}/v={updated:%Y-%m-%dT%H%M%S.%fZ}.pdf"


def _utc(value: Any) -> datetime | None:
    """Return a time in UTC; None if it is no time, or beyond the calendar there."""
    try:
        return value.astimezone(UTC) if isinstance(value, datetime) else None
    except OverflowError:
        return None


def _narrowest(forms: list[Form]) -> FormFilter:
    """Make the filter that matches these forms and as few others as possible."""
    times = [_utc(form.last_updated_on_date_time) for form in forms]
    return FormFilter(
        property_id=_common_identifier(form.property_id for form in forms),
        job_id=_common_identifier(map(job_id_from, forms)),
        updated_since=None if None in times else min(filter(None, times)),
    )


def _common_identifier(values: Iterable[Any]) -> int | str | None:
    """Return the value of all; None if they differ, or it is no identifier."""
    first, *others = values
    with suppress(errors.FsmInputError):
        return parse_identifier("", first) if all(other == first for other in others) else None
    return None
