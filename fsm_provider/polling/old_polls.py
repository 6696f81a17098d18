"""What a poll asks for, and what it finds. Nothing here does I/O or reads a clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

from fsm_provider.api.form_filter import FormFilter, FormReference

MAX_CLOCK_SKEW = timedelta(minutes=5)
"""How far the service's clock may be from ours before ours is used: far less than any sensible look-back.

With a clock ahead of ours, a watermark would pass forms that are still to come; with one behind, forms
would be emitted twice.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollQuery:
    """A listing to read.

    :param wanted: the filter of the request.
    :param max_pages: number of pages after which it is abandoned, None: it is read to its end.
    """

    wanted: FormFilter
    max_pages: int | None = None

    @property
    def since(self) -> datetime | None:
        """Since when forms were updated; None: ever."""
        return cast("datetime | None", self.wanted.updated_since)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """A listing that was read to its end, or abandoned after the number of pages that the query allows.

    :param references: the forms that match the filters, in the service's order.
    :param started: when the service began to respond, by its own clock if it sent the time.
    :param others: number of forms that do not match the filters.
    :param digests: digests of the records without a readable ``lastUpdatedOnDateTime``, by id.
    :param pages: number of pages read.
    :param longest_page: number of records on the longest of them.
    :param complete: it was read to its end.
    """

    references: list[FormReference]
    started: datetime
    others: int = 0
    digests: Mapping[int, str] = field(default_factory=dict)
    pages: int = 1
    longest_page: int = 0
    complete: bool = True

    @property
    def records(self) -> int:
        """Number of records read, matching or not."""
        return len(self.references) + self.others
