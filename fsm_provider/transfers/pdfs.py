"""Stores the PDFs of many forms, several at once, each version once, with an outcome for each."""

from __future__ import annotations

import logging
import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, Unpack

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
from fsm_provider.api.retry import is_repeatable
from fsm_provider.api.validation import parse_identifier
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.storage.lineage import report, uri_for_records
from fsm_provider.transfers.pdf_paths import utc_time

if TYPE_CHECKING:
    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.storage.atomic_files import AtomicFiles
    from fsm_provider.transfers.pdf_paths import PathTemplate

logger: logging.Logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 20
"""After so many transient failures in a row, no further form is tried."""


class _StoppedError(Exception):
    """The task is stopping: downloads under way are abandoned."""


class _Item:
    def __init__(self, form: Form) -> None:
        self.form = form
        self.requested = self.version
        self.outcome: Literal["stored", "skipped", "failed", "not_tried"] = "not_tried"
        self.name: str | None = None
        self.size = 0
        self.error: FsmError | None = None

    def fail(self, error: FsmError) -> None:
        self.outcome, self.error = "failed", error

    def store(self, name: str, *, size: int | None = None) -> None:
        self.outcome = "skipped" if size is None else "stored"
        self.name, self.size, self.error = name, size or 0, None

    @property
    def version(self) -> datetime | None:
        """The time of the version, if it can be read."""
        return utc_time(self.form.last_updated_on_date_time)

    @property
    def is_newer(self) -> bool:
        return self.requested is not None and self.version != self.requested

    @property
    def needs_lookup(self) -> bool:
        """Whether its URL may be the cause: missing, expired or refused."""
        return isinstance(self.error, FsmPdfUrlError | FsmNotPdfError) or (
            isinstance(self.error, FsmApiError) and not is_repeatable(self.error)
        )


class PdfTransfer:
    """Stores the PDFs of forms.

    A form whose URL is missing, has expired or is refused is looked up in the listing, repeatedly as long as
    that helps. After ``MAX_FAILURES_IN_A_ROW`` transient failures in a row, no more are tried.

    :param forms: references to forms, records of forms, or bare identifiers.
    :param limits: for each PDF.
    :raises FsmInputError: naming the first of ``forms`` that is not a form.
    """

    def __init__(
        self,
        forms: Any,
        *,
        fsm_conn_id: str,
        files: AtomicFiles,
        template: PathTemplate,
        concurrency: int,
        **limits: Unpack[PdfLimits],
    ) -> None:
        self._hook = FsmHook(fsm_conn_id, sleep=self._sleep)
        given = parse_forms(forms, self._hook.client.settings.server_timezone)
        self._items = [_Item(form) for form in given]
        self._files = files
        self._template = template
        self._concurrency = concurrency
        self._limits = limits
        self._stopping = Event()
        self._finished = count(1)
        self._failures_in_a_row = 0
        self.interrupted: bool = False
        """Whether :meth:`interrupt` was called, or an unexpected error stopped it."""

    def run(self) -> None:
        """Store the files; returns once no download is under way."""
        self._store_all(self._items)
        remaining = [item for item in self._items if item.needs_lookup]
        while remaining and not self._stopping.is_set():
            listed = self._look_up(remaining)
            self._store_all(listed)
            remaining = [item for item in listed if item.needs_lookup]
            if len(remaining) == len(listed):
                break
        for item in remaining:
            self._log(item)
        report(self._hook, inputs=[uri_for_records(self._hook.fsm_conn_id, "forms")])
        logger.info(self.summary)

    def interrupt(self) -> None:
        """Start no more downloads, and abandon those under way."""
        self.interrupted = True
        self._stopping.set()

    @property
    def paths(self) -> list[str | None]:
        """The path of each input's PDF, with the storage's connection; None where it is not stored."""
        folder = self._files.folder
        return [str(folder / item.name) if item.name else None for item in self._items]

    @property
    def failures(self) -> list[str]:
        return [f"forms[{index}]: {item.error}" for index, item in enumerate(self._items) if item.error]

    @property
    def complete(self) -> bool:
        return all(item.name for item in self._items)

    @property
    def retry_could_help(self) -> bool:
        """Whether a retry of the task could store what is missing."""
        return self.passing_error is not None or any(item.outcome == "not_tried" for item in self._items)

    @property
    def passing_error(self) -> FsmError | None:
        """The last error that is not permanent."""
        errors = [item.error for item in self._items if item.error and not item.error.permanent]
        return errors[-1] if errors else None

    @property
    def counts(self) -> dict[str, int]:
        """The number of inputs by outcome, and the bytes that were stored."""
        outcomes = Counter[str](item.outcome for item in self._items)
        return {
            **{outcome: outcomes[outcome] for outcome in ("stored", "skipped", "failed", "not_tried")},
            "bytes": sum({item.name: item.size for item in self._items if item.size}.values()),
        }

    @property
    def summary(self) -> str:
        counts = self.counts
        size = counts.pop("bytes")
        parts = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items() if number]
        return f"{len(self._items)} PDFs: {', '.join(parts) or 'nothing to do'}; {size:,} bytes"

    def _store_all(self, items: list[_Item]) -> None:
        by_name: dict[str, list[_Item]] = defaultdict(list)
        for item in items:
            try:
                by_name[self._template.path_for(item.form)].append(item)
            except FsmPdfUrlError as error:
                item.fail(error)
        there = self._already_there(list(by_name))
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="fsm-pdf") as pool:
            try:
                for work in [
                    pool.submit(self._process, name, same, name in there) for name, same in by_name.items()
                ]:
                    work.result()
            except BaseException:
                self.interrupt()
                raise

    def _already_there(self, names: list[str]) -> set[str]:
        """Return which of these files are stored, from one listing of the folder that they have in common."""
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
        item = max(same, key=lambda one: bool(one.form.form_pdf_url))
        try:
            size = None if is_there else self._fetch(name, item.form)
            self._failures_in_a_row = 0
            for one in same:
                one.store(name, size=size)
        except _StoppedError:
            return
        except FsmError as error:
            for one in same:
                one.fail(error)
            self._stop_after_failures(error)
        except Exception as error:  # noqa: BLE001 - each storage's library has errors of its own
            reason = f"form {item.form.id}: {name}: {type(error).__name__}: {error}"
            for one in same:
                one.fail(FsmStorageError(reason))
        if not item.needs_lookup:
            self._log(item)

    def _fetch(self, name: str, form: Form) -> int:
        return self._hook.client.download_pdf(
            form, lambda chunks: self._files.store(name, self._until_stopped(chunks)), **self._limits
        )

    def _until_stopped(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._stopping.is_set():
                raise _StoppedError
            yield chunk

    def _look_up(self, items: list[_Item]) -> list[_Item]:
        """Replace the records of those in the listing by their current ones; return these items."""
        wanted = _narrowest([item.form for item in items])
        logger.info("Looking up %s forms in the listing (%s)", len(items), wanted)
        missing: dict[int, list[_Item]] = defaultdict(list)
        for item in items:
            missing[item.form.id].append(item)
        failure: FsmError | None = None
        try:
            for form in self._hook.list_forms(**wanted.as_dict()):
                for item in missing.pop(form.id, ()):
                    item.form = form
                if not missing:
                    break
        except _StoppedError:
            return []
        except FsmError as error:
            failure = error
        for same in missing.values():
            for item in same:
                item.error = failure or FsmPdfError(f"form {item.form.id} is not in the listing ({wanted})")
                self._log(item)
        return [item for item in items if item.form.id not in missing]

    def _stop_after_failures(self, error: FsmError) -> None:
        transient = is_repeatable(error) or isinstance(error, FsmDownloadTimeoutError)
        self._failures_in_a_row = self._failures_in_a_row + 1 if transient else 0
        if self._failures_in_a_row == MAX_FAILURES_IN_A_ROW:
            logger.error("%s transient failures in a row: no more are tried", MAX_FAILURES_IN_A_ROW)
            self._stopping.set()

    def _log(self, item: _Item) -> None:
        level, what = (logging.ERROR, item.error) if item.error else (logging.INFO, item.name)
        newer = ", a newer version than the one asked for" if item.name and item.is_newer else ""
        logger.log(
            level, "%s: form %s %s: %s%s", next(self._finished), item.form.id, item.outcome, what, newer
        )

    def _sleep(self, seconds: float) -> None:
        """Wait between two attempts at a request; raise as soon as the transfer is stopped."""
        if self._stopping.wait(seconds):
            raise _StoppedError


def _narrowest(forms: list[Form]) -> FormFilter:
    """Make the filter that matches these forms and as few others as possible."""
    updated_since = _earliest(form.last_updated_on_date_time for form in forms)
    return FormFilter(
        property_id=_common_identifier(form.property_id for form in forms),
        job_id=_common_identifier(job_id_from(form) for form in forms),
        updated_since=updated_since,
        created_since=None if updated_since else _earliest(form.created_on_date_time for form in forms),
    )


def _common_identifier(values: Iterable[Any]) -> int | str | None:
    """Return the value of all; None if they differ, or it is no identifier."""
    first, *others = values
    with suppress(FsmInputError):
        return parse_identifier("", first) if all(other == first for other in others) else None
    return None


def _earliest(times: Iterable[Any]) -> datetime | None:
    known = list(map(utc_time, times))
    return None if None in known else min(filter(None, known))
