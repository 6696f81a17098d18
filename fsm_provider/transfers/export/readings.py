"""Reads a listing again where its totals suggest that records are missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.listing import Listing
from fsm_provider.transfers.export.sort_buffer import Entry, SortBuffer

logger: logging.Logger = logging.getLogger(__name__)

MAX_READINGS = 3


@contextmanager
def read_completely(
    list_records: Callable[[], Listing], entries: Callable[[Listing], Iterable[Entry]]
) -> Iterator[SortBuffer]:
    """Yield a listing's entries, once they agree with its totals or two readings with each other.

    :param list_records: starts a listing.
    :param entries: makes the entries of all its pages.
    :raises FsmResponseError: if all readings differ.
    """
    earlier: set[bytes] = set()
    for number in range(1, MAX_READINGS + 1):
        with SortBuffer() as buffer:
            listing = list_records()
            buffer.fill(entries(listing))
            mismatch = listing.mismatch
            if mismatch is None:
                yield buffer
                return
            identifiers = buffer.digest_of_identifiers()
            if identifiers in earlier:
                logger.warning(
                    "Two readings of the listing gave the same records, which are exported: the service's "
                    "meta.totalRecords seems to count something else (%s)",
                    mismatch,
                )
                yield buffer
                return
        earlier.add(identifiers)
        logger.info("Reading %s of %s of the listing: %s", number, MAX_READINGS, mismatch)
    raise FsmResponseError(
        f"nothing is exported: {MAX_READINGS} readings of the listing differ from each other and from the "
        f"service's totals. {mismatch}. Retry when fewer records are changing"
    )
