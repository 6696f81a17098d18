"""Deliveries as asset events, each once: the one place that uses Airflow's internals for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.plugins.webhooks.signature import Proof

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Outcome = Literal["accepted", "repeated", "no asset"]


def record(uri: str, proof: Proof, extra: dict[str, Any]) -> Outcome:
    """Make an asset event of a delivery, unless there is one since 24 hours; returns once it is stored.

    The memory of deliveries is the asset's events themselves, read and written in one transaction that
    holds the asset's row: it holds for every worker of every API server, and over their restarts.

    :param uri: the asset's; some DAG has to use it.
    :param extra: what the event says.
    """
    from airflow.assets.manager import asset_manager
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import JSON, or_, select, type_coerce

    with create_session() as session:
        # First of all: what is read before is, in MySQL, what the transaction goes on to see.
        asset_id = _locked(session, uri)
        if asset_id is None:
            return "no asset"
        # Before Airflow 3.2 the column has a type of its own, which gives no access to elements.
        noted = type_coerce(AssetEvent.extra, JSON)
        same = select(AssetEvent.id).where(
            AssetEvent.asset_id == asset_id,
            AssetEvent.timestamp >= datetime.now(UTC) - timedelta(hours=REMEMBERED_HOURS),
            or_(
                noted["delivery"].as_string() == proof.key,
                noted["digest"].as_string() == proof.digest,
            ),
        )
        if session.scalar(same.limit(1)) is not None:
            return "repeated"
        _hold_queue(session, asset_id)
        event = asset_manager.register_asset_change(
            asset=session.scalars(select(AssetModel).where(AssetModel.id == asset_id)).one(),
            extra={"delivery": proof.key, "digest": proof.digest, **extra},
            session=session,
            source_is_api=True,
        )
        if event is None:
            return "no asset"
        _queue_until(session, asset_id, event.timestamp)
        return "accepted"


def _locked(session: Session, uri: str) -> int | None:
    """Give the identifier of the active asset, its row held until the end of the transaction."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select, update

    active = (AssetModel.uri == uri, AssetModel.active.has())
    if session.get_bind().dialect.name != "sqlite":
        # Weaker than FOR UPDATE: a task that updates the asset meanwhile is not kept waiting.
        locked = select(AssetModel.id).where(*active).with_for_update(of=AssetModel, key_share=True)
        return session.scalar(locked)
    # SQLite has no row locks; an update that changes nothing takes the lock of the whole database.
    session.execute(
        update(AssetModel)
        .where(*active)
        .values(id=AssetModel.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(select(AssetModel.id).where(*active))


def _hold_queue(session: Session, asset_id: int) -> None:
    """Keep the scheduler from taking the asset's queue rows; what it has begun to take is gone afterwards.

    Otherwise it could delete a row that this event counts on, having read the events before.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import update

    session.execute(
        update(AssetDagRunQueue)
        .where(AssetDagRunQueue.asset_id == asset_id)
        .values(created_at=AssetDagRunQueue.created_at)
        .execution_options(synchronize_session=False)
    )


def _queue_until(session: Session, asset_id: int, timestamp: datetime) -> None:
    """Have the run that is queued take this event too.

    A run takes the events up to the time of its queue row, which the first event of a burst makes. The
    others would wait for a run that nothing starts.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import select

    session.flush()
    for row in session.scalars(select(AssetDagRunQueue).where(AssetDagRunQueue.asset_id == asset_id)):
        row.created_at = max(row.created_at, timestamp)
