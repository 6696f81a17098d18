"""Record deliveries as asset events, each once; the only module that uses Airflow's internals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.plugins.webhooks.delivery_index import DeliveryIndex, StoredEvent
from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

Outcome = Literal["accepted", "repeated", "no asset"]


class DeliveryRecorder:
    """Records deliveries as asset events, each once. It waits for the database: call it in a thread.

    A process needs one, as it keeps an index of the deliveries that it has seen.

    :param clock: returns the current time.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._indexes: dict[str, DeliveryIndex] = {}

    def record(self, uri: str, identity: DeliveryIdentity, extra: dict[str, Any]) -> Outcome:
        """Record a delivery, unless it repeats one of the last 24 hours; return once it is stored.

        Earlier deliveries are found among the asset's events, in a transaction that locks the asset's row. So
        repeats are dropped by all workers of all API servers, also after restarts.

        :param uri: the URI of the asset, which some DAG has to use.
        :param extra: what the event holds beside the identity of the delivery.
        :return: what became of the delivery.
        """
        from airflow.assets.manager import asset_manager
        from airflow.models.asset import AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        index = self._indexes.setdefault(uri, DeliveryIndex())
        with index.lock:
            if index.is_stale:
                with create_session() as session:
                    asset_id = session.scalar(select(AssetModel.id).where(*_active(uri)))
                    if asset_id is not None:
                        self._update(index, session, asset_id)
            with create_session() as session:
                # Must come first: in MySQL the first read may fix what the transaction sees.
                asset_id = _locked(session, uri)
                if asset_id is None:
                    return "no asset"
                self._update(index, session, asset_id)
                if self._is_repeat(index, session, asset_id, identity):
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

    def _update(self, index: DeliveryIndex, session: Session, asset_id: int) -> None:
        from airflow.models.asset import AssetEvent

        index.update(
            self._clock(),
            lambda event_id: _events(session, _is_of(asset_id), AssetEvent.id >= event_id),
            lambda since: _events(
                session, AssetEvent.asset_id == asset_id, AssetEvent.timestamp >= since, yield_per=1000
            ),
        )

    def _is_repeat(
        self, index: DeliveryIndex, session: Session, asset_id: int, identity: DeliveryIdentity
    ) -> bool:
        from airflow.models.asset import AssetEvent

        since = self._clock() - timedelta(hours=REMEMBERED_HOURS)
        return any(
            event.timestamp >= since and (event.delivery == identity.key or event.digest == identity.digest)
            for event_id in index.find(identity)
            for event in _events(session, _is_of(asset_id), AssetEvent.id == event_id)
        )


def _events(
    session: Session, *conditions: ColumnElement[bool], yield_per: int | None = None
) -> Iterator[StoredEvent]:
    """Return events, sorted by id.

    :param yield_per: read so many at once; all of them have to be used before the session's next query.
    """
    from airflow.models.asset import AssetEvent
    from sqlalchemy import JSON, select, type_coerce

    # Before Airflow 3.2 the column has a custom type, which cannot access elements.
    extra = type_coerce(AssetEvent.extra, JSON)
    events = (
        select(
            AssetEvent.id,
            AssetEvent.timestamp,
            extra["delivery"].as_string(),
            extra["digest"].as_string(),
        )
        .where(*conditions)
        .order_by(AssetEvent.id)
    )
    options = {} if yield_per is None else {"yield_per": yield_per}
    return (StoredEvent(*row) for row in session.execute(events, execution_options=options))


def _is_of(asset_id: int) -> ColumnElement[bool]:
    """Return the condition for an asset's events, for queries that are to use the primary key."""
    from airflow.models.asset import AssetEvent

    # With "+ 0", as databases may use the index of this column instead.
    return AssetEvent.asset_id + 0 == asset_id


def _active(uri: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the active asset."""
    from airflow.models.asset import AssetModel

    return AssetModel.uri == uri, AssetModel.active.has()


def _locked(session: Session, uri: str) -> int | None:
    """Return the id of the active asset, or None; lock its row until the end of the transaction."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select, update

    active = _active(uri)
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
