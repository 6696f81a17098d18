"""Record deliveries as asset events, each once; the only module that uses Airflow's internals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Outcome = Literal["accepted", "repeated", "no asset"]


def record_delivery(
    uri: str,
    identity: DeliveryIdentity,
    extra: dict[str, Any],
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Outcome:
    """Record a delivery, unless it repeats one of the last 24 hours; return once it is stored.

    Earlier deliveries are found among the asset's events, in a transaction that locks the asset's row. So
    repeats are dropped by all workers of all API servers, also after restarts. It waits for the database:
    call it in a thread.

    :param uri: the URI of the asset, which some DAG has to use.
    :param extra: what the event holds beside the identity of the delivery.
    :return: what became of the delivery.
    """
    from airflow.assets.manager import asset_manager
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        # Must come first: in MySQL the first read may fix what the transaction sees.
        asset_id = _locked(session, uri)
        if asset_id is None:
            return "no asset"
        if _is_stored(session, asset_id, identity, clock() - timedelta(hours=REMEMBERED_HOURS)):
            return "repeated"
        _lock_queue(session, asset_id)
        event = asset_manager.register_asset_change(
            asset=session.scalars(select(AssetModel).where(AssetModel.id == asset_id)).one(),
            extra={"delivery": identity.key, "digest": identity.digest, **extra},
            session=session,
            source_is_api=True,
        )
        if event is None:
            return "no asset"
        _extend_queue(session, asset_id, event.timestamp)
        return "accepted"


class _Deliveries:
    """The deliveries of an asset that this process has read, with their times.

    :ivar last_id: of the events that were read.
    :ivar times: by ``delivery`` or ``digest`` and its value, the oldest first.
    """

    def __init__(self) -> None:
        self.last_id = 0
        self.times: dict[tuple[str, str], datetime] = {}


_read: dict[int, _Deliveries] = {}
"""By the asset's id; whoever uses them has locked its row."""


def _is_stored(session: Session, asset_id: int, identity: DeliveryIdentity, since: datetime) -> bool:
    """Return whether an event since then has the key or the digest.

    Events that this process has read before are not read again. Deliveries are recorded one after the other,
    as the asset's row is locked, so the others have greater ids.
    """
    from airflow.models.asset import AssetEvent
    from sqlalchemy import select

    deliveries = _read.setdefault(asset_id, _Deliveries())
    times = deliveries.times
    events = select(AssetEvent.id, AssetEvent.timestamp, AssetEvent.extra).where(
        AssetEvent.asset_id == asset_id,
        AssetEvent.id > deliveries.last_id,
        AssetEvent.timestamp >= since,
    )
    for event_id, timestamp, extra in session.execute(events.order_by(AssetEvent.id)):
        deliveries.last_id = event_id
        for name in ("delivery", "digest"):
            if isinstance(extra, dict) and isinstance(extra.get(name), str):
                times[name, extra[name]] = timestamp
    for forgotten in [*takewhile(lambda one: times[one] < since, times)]:
        del times[forgotten]
    return ("delivery", identity.key) in times or ("digest", identity.digest) in times


def _locked(session: Session, uri: str) -> int | None:
    """Return the id of the active asset, or None; lock its row until the end of the transaction."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select, update

    active = AssetModel.uri == uri, AssetModel.active.has()
    if session.get_bind().dialect.name != "sqlite":
        # Weaker than FOR UPDATE: a task that updates the asset meanwhile does not have to wait.
        locked = select(AssetModel.id).where(*active).with_for_update(of=AssetModel, key_share=True)
        return session.scalar(locked)
    # SQLite has no row locks; an update that changes nothing locks the database.
    session.execute(
        update(AssetModel)
        .where(*active)
        .values(id=AssetModel.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(select(AssetModel.id).where(*active))


def _lock_queue(session: Session, asset_id: int) -> None:
    """Lock the asset's queue rows; rows that the scheduler is already consuming are gone afterwards.

    Otherwise the scheduler could read the events before this one and then delete the row this one relies on.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import update

    session.execute(
        update(AssetDagRunQueue)
        .where(AssetDagRunQueue.asset_id == asset_id)
        .values(created_at=AssetDagRunQueue.created_at)
        .execution_options(synchronize_session=False)
    )


def _extend_queue(session: Session, asset_id: int, timestamp: datetime) -> None:
    """Include this event in the run that is queued.

    A run consumes the events up to the time of its queue row, which the first event of a burst creates. The
    others would wait for a run that nothing starts.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import select

    session.flush()
    for row in session.scalars(select(AssetDagRunQueue).where(AssetDagRunQueue.asset_id == asset_id)):
        row.created_at = max(row.created_at, timestamp)
