"""The tracker of an asset's watcher, as its configuration and the asset's store say."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypedDict

from fsm_provider.polling.configurations import CONFIGURATIONS, CONFLICT_WINDOW, Configuration
from fsm_provider.polling.new_forms import WATERMARK, NewFormTracker, StoredWatermark, polled_until
from fsm_provider.polling.watch import FormWatch, filter_from, question_from
from fsm_provider.state.asset_store import AssetReader
from fsm_provider.state.digest import digest_for

REPLAY = "fsm_forms/replay"
"""Key of the last replay that a person has requested."""


class Replay(TypedDict):
    """A request to emit forms again; times are ISO 8601.

    :param id: tells it apart from other requests.
    :param fsm_conn_id: the connection that the asset had.
    :param since: forms updated at or after this time.
    :param until: and before this one; None: all.
    """

    id: str
    fsm_conn_id: str
    since: str
    until: str | None


def tracker_for(watch: FormWatch) -> NewFormTracker:
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
    )


def prefix_for(watch: FormWatch) -> str:
    """Return the key prefix of a question's state: the interval does not change it."""
    return f"fsm_forms/{digest_for([*question_from(watch).values()], 12)}/"


async def stored_watermarks(watch: FormWatch, store: AssetReader) -> dict[str, StoredWatermark]:
    """Return the watermarks of the asset and the connection by prefix, the current configuration's last.

    A replay rewrites everything below the current prefix. Later, what was stored below the others counts no
    more: it would say that the replayed forms were emitted.
    """
    known: list[Configuration] = await store.aget(CONFIGURATIONS) or []
    same_service = [one["watch"] for one in known if one["watch"]["fsm_conn_id"] == watch["fsm_conn_id"]]
    newest_first = dict.fromkeys([prefix_for(watch), *map(prefix_for, reversed(same_service))])
    found: dict[str, StoredWatermark] = {}
    for prefix in reversed(newest_first):
        if (watermark := await store.aget(prefix + WATERMARK)) is not None:
            found[prefix] = watermark
    replay: Replay | None = await store.aget(REPLAY)
    replayed = {
        prefix: one for prefix, one in found.items() if replay and one.get("replayed") == replay["id"]
    }
    return replayed or found


async def restore(tracker: NewFormTracker, watch: FormWatch, store: AssetReader) -> Replay | None:
    """Restore what was emitted, and the newest watermark; do the replay that is requested, and return it.

    Of two versions in the same hour, the one restored last counts: that of the current configuration. Two
    configurations that alternate keep their own watermark: neither polls for the other's forms.
    """
    watermarks = await stored_watermarks(watch, store)
    polled: dict[str, datetime] = {}
    for prefix, watermark in watermarks.items():
        if until := polled_until(watermark):
            polled[prefix] = until
        for key in watermark["pieces"]:
            tracker.restore_emitted(key, await store.aget(prefix + key) or {})
    if polled:
        current, newest = prefix_for(watch), max(polled, key=polled.__getitem__)
        if current in polled and polled[newest] - polled[current] <= CONFLICT_WINDOW:
            tracker.restore(watermarks[current])
        else:
            tracker.restore(watermarks[newest], from_other_filter=True)
    replay: Replay | None = await store.aget(REPLAY)
    if replay and replay["fsm_conn_id"] == watch["fsm_conn_id"] and not is_done(replay, watermarks):
        until = datetime.fromisoformat(replay["until"]) if replay["until"] else None
        tracker.replay(datetime.fromisoformat(replay["since"]), until)
    return replay


def is_done(replay: Replay, watermarks: dict[str, StoredWatermark]) -> bool:
    """Return whether a watcher has taken a replay up, and stored that."""
    return any(one.get("replayed") == replay["id"] for one in watermarks.values())
