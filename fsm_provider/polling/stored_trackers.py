"""The tracker of an asset's watcher, as its configuration and the asset's store say."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fsm_provider.api.form_filter import parse_reference_time
from fsm_provider.polling.configurations import CONFIGURATIONS, CONFLICT_WINDOW, Configuration
from fsm_provider.polling.new_forms import WATERMARK, NewFormTracker, StoredWatermark
from fsm_provider.polling.replays import Replay, requested_replay
from fsm_provider.polling.watch import FormWatch, filter_from, question_from
from fsm_provider.state.assets import AssetStore
from fsm_provider.state.digest import digest_for

logger: logging.Logger = logging.getLogger(__name__)

NEVER = datetime.min.replace(tzinfo=UTC)


def tracker_for(watch: FormWatch, began: float = math.inf) -> NewFormTracker:
    """Make the tracker of a configuration."""
    return NewFormTracker(
        filter_from(watch),
        property_ids=watch["filters"].get("property_ids", ()),
        job_ids=watch["filters"].get("job_ids", ()),
        form_names=watch["form_names"],
        start_from=watch["start_from"],
        look_back=timedelta(seconds=watch["look_back"]),
        reconcile_back=timedelta(seconds=watch["reconcile_back"]),
        reconcile_every=watch["reconcile_every"],
        began=began,
    )


def prefix_for(watch: FormWatch) -> str:
    """Return the key prefix of a question's state: the interval does not change it."""
    return f"fsm_forms/{digest_for([*question_from(watch).values()], 12)}/"


async def stored_watermarks(watch: FormWatch, store: AssetStore) -> dict[str, StoredWatermark]:
    """Return the watermarks of the asset and its connection by prefix, the current configuration's last.

    A replay rewrites everything below the current prefix. From then on, what is stored below the others does
    not count: it says that the requested forms were emitted.
    """
    known: list[Configuration] = await store.aget(CONFIGURATIONS) or []
    same_service = [one["watch"] for one in known if one["watch"]["fsm_conn_id"] == watch["fsm_conn_id"]]
    newest_first = dict.fromkeys([prefix_for(watch), *map(prefix_for, reversed(same_service))])
    found: dict[str, StoredWatermark] = {}
    for prefix in reversed(newest_first):
        if (watermark := await store.aget(prefix + WATERMARK)) is not None:
            found[prefix] = watermark
    if newest := newest_of(found):
        return {prefix: one for prefix, one in found.items() if one.get("replayed") == newest.get("replayed")}
    return found


async def restore(tracker: NewFormTracker, watch: FormWatch, store: AssetStore) -> Replay | None:
    """Restore what was emitted, and the newest watermark; return the replay that is requested, now begun.

    Of two versions in the same hour, the one restored last counts: that of the current configuration. Two
    configurations that alternate keep their own watermark: neither polls for the other's forms.
    """
    watermarks = await stored_watermarks(watch, store)
    for prefix, watermark in watermarks.items():
        for key in watermark["pieces"]:
            emitted = await store.aget(prefix + key) or {}
            tracker.restore_emitted(key, emitted, is_own=prefix == prefix_for(watch))
    if newest := newest_of(watermarks):
        own = watermarks.get(prefix_for(watch))
        if own and _polled_until(newest) - _polled_until(own) <= CONFLICT_WINDOW:
            tracker.restore(own)
        else:
            tracker.restore(newest, from_other_filter=True)
    replay = await requested_replay(watch, store)
    if replay and not is_begun(replay, watermarks):
        tracker.replay(replay)
        logger.info("The asset '%s' emits forms again: %s", watch["asset_name"], replay)
    return replay


def is_begun(replay: Replay, watermarks: Mapping[str, StoredWatermark]) -> bool:
    """Return whether a watcher has begun a replay, and stored that."""
    return any(one.get("replayed") == replay.id for one in watermarks.values())


def newest_of(watermarks: Mapping[str, StoredWatermark]) -> StoredWatermark | None:
    """Return the watermark of the last poll; None before the first."""
    polled = [one for one in watermarks.values() if _polled_until(one) > NEVER]
    return max(polled, key=_polled_until, default=None)


def _polled_until(stored: StoredWatermark) -> datetime:
    """Return where the next poll would have begun; :data:`NEVER` before the first."""
    return parse_reference_time(stored.get("polled", stored["moment"])) or NEVER
