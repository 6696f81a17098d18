"""The PDFs of many forms, some at once, each version once, with an outcome for each."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import (
    FsmAddressError,
    FsmApiError,
    FsmError,
    FsmFileError,
    FsmNotPdfError,
)
from fsm_provider.api.forms import FormFilter, job_id_of, read_forms
from fsm_provider.api.models import Form
from fsm_provider.api.retry import is_transient
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.lineage import records_of, report, uri_of
from fsm_provider.manifest import PdfEnd, PdfOutcome

if TYPE_CHECKING:
    from fsm_provider.paths import PathTemplate
    from fsm_provider.storing import StoredFile, WholeFiles

logger: logging.Logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 20
"""So many that time alone may mend, one after the other, are an outage: no further form is tried."""


class _StoppedError(Exception):
    """The task ends: what is under way is given up."""


class _Item:
    """An input, and what becomes of it."""

    def __init__(self, index: int, form: Form) -> None:
        self.index = index
        self.form = form
        self.asked = form.last_updated_on_date_time
        self.end: PdfEnd = "not_tried"
        self.path: str | None = None
        self.file: StoredFile | None = None
        self.error: FsmError | None = None

    def settle(self, end: PdfEnd, path: str | None, file: StoredFile | None, error: FsmError | None) -> None:
        self.end, self.path, self.file, self.error = end, path, file, error

    @property
    def listing_may_mend_it(self) -> bool:
        """Whether its address may be to blame: it is missing, has expired or is refused."""
        return isinstance(self.error, FsmAddressError | FsmNotPdfError) or (
            isinstance(self.error, FsmApiError) and not is_transient(self.error)
        )

    def as_outcome(self) -> PdfOutcome:
        return PdfOutcome(
            index=self.index,
            form=self.form.id,
            lastUpdatedOnDateTime=self.form.as_json()["lastUpdatedOnDateTime"],
            path=self.path,
            sha256=self.file.sha256 if self.file else None,
            bytes=self.file.size if self.file else None,
            outcome=self.end,
            newer=self.asked is not None and self.form.last_updated_on_date_time != self.asked,
            error=str(self.error) if self.error else None,
        )


class PdfTransfer:
    """Brings the PDFs of forms to a storage.

    A form whose address is missing, has expired or is refused is looked up in the listing, again as long as
    that brings files. Nothing more is tried in an outage.

    :param forms: references to forms, records of forms, or bare identifiers.
    :param files: where the PDFs go.
    :param earlier: the sha256 of files, by path, that an earlier manifest names.
    :param concurrency: forms at once.
    :raises FsmInputError: naming the first of ``forms`` that is none.
    """

    def __init__(
        self,
        forms: Any,
        *,
        fsm_conn_id: str,
        files: WholeFiles,
        template: PathTemplate,
        earlier: Mapping[str, str],
        concurrency: int,
        max_bytes: int,
        allow_private_addresses: bool,
    ) -> None:
        self._hook = FsmHook(fsm_conn_id, sleep=self._sleep)
        known = read_forms(forms, self._hook.client.settings.server_timezone)
        self._items = [_Item(index, form) for index, form in enumerate(known)]
        self._files = files
        self._template = template
        self._earlier = earlier
        self._concurrency = concurrency
        self._max_bytes = max_bytes
        self._allow_private_addresses = allow_private_addresses
        self._stopping = Event()
        self._settled = count(1)
        self._failures_in_a_row = 0
        self.interrupted: bool = False
        """Whether it was stopped from outside."""

    def run(self) -> None:
        """Bring the files; returns when nothing is under way any more."""
        _ = self._files.folder.fs  # made once, before threads share it
        self._bring(self._items)
        unmended = [item for item in self._items if item.listing_may_mend_it]
        while unmended and not self._stopping.is_set():
            listed = self._look_up(unmended)
            self._bring(listed)
            unmended = [item for item in listed if item.listing_may_mend_it]
            if len(unmended) == len(listed):
                break
        for item in unmended:
            self._tell(item)
        report(self._hook, inputs=[records_of(self._hook.fsm_conn_id, "forms")])
        logger.info(self.summary)

    def interrupt(self) -> None:
        """Begin nothing more, and give up what is under way."""
        self.interrupted = True
        self._stopping.set()

    @property
    def outcomes(self) -> list[PdfOutcome]:
        """One for each input, in its order."""
        return [item.as_outcome() for item in self._items]

    @property
    def complete(self) -> bool:
        """Whether every file is there."""
        return all(item.end in ("stored", "skipped") for item in self._items)

    @property
    def another_try_could_help(self) -> bool:
        """Whether to leave what is missing to a retry of the task."""
        return self.passing_error is not None or any(item.end == "not_tried" for item in self._items)

    @property
    def passing_error(self) -> FsmError | None:
        """The last error that another try might not meet."""
        errors = [item.error for item in self._items if item.error and not item.error.permanent]
        return errors[-1] if errors else None

    @property
    def counts(self) -> dict[str, int]:
        """How many inputs came to what, and the bytes that were stored."""
        ends = Counter[str](item.end for item in self._items)
        stored = {item.path: item.file.size for item in self._items if item.file and item.end == "stored"}
        return {
            **{end: ends[end] for end in ("stored", "skipped", "failed", "not_tried")},
            "bytes": sum(stored.values()),
        }

    @property
    def summary(self) -> str:
        """The same in one line."""
        counts = self.counts
        size = counts.pop("bytes")
        parts = [f"{number} {end.replace('_', ' ')}" for end, number in counts.items() if number]
        return f"{len(self._items)} PDFs: {', '.join(parts) or 'nothing to do'}; {size:,} bytes"

    def _bring(self, items: list[_Item]) -> None:
        versions: dict[tuple[int, Any], list[_Item]] = defaultdict(list)
        for item in items:
            versions[item.form.id, item.form.last_updated_on_date_time].append(item)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="fsm-pdf") as pool:
            try:
                for work in [pool.submit(self._settle, same) for same in versions.values()]:
                    work.result()
            except BaseException:
                self.interrupt()
                raise

    def _settle(self, same: list[_Item]) -> None:
        if self._stopping.is_set():
            return
        item = max(same, key=lambda one: bool(one.form.form_pdf_url))
        try:
            self._fetch(item)
            self._failures_in_a_row = 0
        except _StoppedError:
            return
        except FsmError as error:
            item.settle("failed", None, None, error)
            self._stop_in_an_outage(error)
        except BaseException:
            self.interrupt()
            raise
        for other in same:
            other.settle(item.end, item.path, item.file, item.error)
        if not item.listing_may_mend_it:
            self._tell(item)

    def _fetch(self, item: _Item) -> None:
        name = self._template.path_of(item.form)
        path = uri_of(self._files.folder / name)
        there = self._files.measure(name)
        if there is None:
            stored = self._hook.client.download_pdf(
                item.form,
                lambda pieces: self._files.store(name, self._until_stopped(pieces)),
                max_bytes=self._max_bytes,
                allow_private_addresses=self._allow_private_addresses,
            )
            item.settle("stored", path, stored, None)
        elif self._earlier.get(path, there.sha256) == there.sha256:
            item.settle("skipped", path, there, None)
        else:
            raise FsmFileError(
                f"form {item.form.id}: {path} is not the file that the earlier manifest names, and is left "
                "as it is: find out who changed it, and move it away to have it fetched again"
            )

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._stopping.is_set():
                raise _StoppedError
            yield piece

    def _look_up(self, items: list[_Item]) -> list[_Item]:
        """Give those that the listing holds, with their records as they are there."""
        wanted = _narrowest([item.form for item in items])
        logger.info("looking for %s forms in the listing (%s)", len(items), wanted)
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
                item.error = failure or FsmFileError(f"form {item.form.id} is not in the listing ({wanted})")
                self._tell(item)
        return [item for item in items if item.form.id not in missing]

    def _stop_in_an_outage(self, error: FsmError) -> None:
        self._failures_in_a_row = self._failures_in_a_row + 1 if is_transient(error) else 0
        if self._failures_in_a_row == FAILURES_IN_A_ROW:
            logger.error(
                "%s failures one after the other are an outage: no more are tried", FAILURES_IN_A_ROW
            )
            self._stopping.set()

    def _tell(self, item: _Item) -> None:
        level, what = (logging.ERROR, item.error) if item.error else (logging.INFO, item.path)
        logger.log(level, "%s: form %s %s: %s", next(self._settled), item.form.id, item.end, what)

    def _sleep(self, seconds: float) -> None:
        """Wait between two attempts at a request, but not beyond a stop."""
        if self._stopping.wait(seconds):
            raise _StoppedError


def _narrowest(forms: list[Form]) -> FormFilter:
    """Make the filter that lets these forms through and as few others as can be."""
    updated_since = _earliest(form.last_updated_on_date_time for form in forms)
    return FormFilter(
        property_id=_shared(form.property_id for form in forms),
        job_id=_shared(job_id_of(form) for form in forms),
        updated_since=updated_since,
        created_since=None if updated_since else _earliest(form.created_on_date_time for form in forms),
    )


def _shared(values: Iterable[Any]) -> Any:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _earliest(moments: Iterable[Any]) -> datetime | None:
    known = list(moments)
    return min(known) if all(isinstance(moment, datetime) for moment in known) else None
