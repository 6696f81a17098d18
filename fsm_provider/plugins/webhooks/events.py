"""Record deliveries as asset events, each once, and count them; here are Airflow's internals."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from airflow.assets.manager import asset_manager
from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
from airflow.utils.session import create_session
from sqlalchemy import JSON, and_, func, select, type_coerce, update
from sqlalchemy.orm import Session

from fsm_provider.api.payloads import WebhookObject
from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.storage import uri_for_records

DeliveryOutcome = Literal["accepted", "repeated", "no asset"]
"""What became of an authentic delivery; ``no asset``: no parsed DAG uses its asset."""
UNKNOWN_ROUTE = "-/-"
"""Stands for the route of a delivery whose path token is not known: its path may be anything."""
REFUSED: dict[str, Counter[str]] = defaultdict(Counter)
"""How often this process has refused deliveries, by route and reason.

What is refused is not stored.
"""


class DeliveryCounts(NamedTuple):
    """How many deliveries came on a route.

    :ivar route: ``<connection>/<object>``, or ``UNKNOWN_ROUTE``.
    :ivar accepted: within the last day; None if no DAG uses the route's asset.
    :ivar refused: by reason, as this process has counted them since it started.
    """

    route: str
    accepted: int | None
    refused: Counter[str]

    @property
    def has_asset(self) -> bool:
        """Whether a DAG uses the route's asset."""
        return self.accepted is not None


def record_delivery(uri: str, digest: str, extra: dict[str, Any]) -> DeliveryOutcome:
    """Record a delivery, unless it repeats one of the last 24 hours; return once it is stored.

    Earlier deliveries are looked up among the asset's events, in a transaction that locks the
    asset's row. So the workers of all API servers drop repeats, also after restarts. It waits for
    the database: call it in a thread.

    :param uri: the URI of the asset, which some DAG has to use.
    :param digest: distinguishes the delivery; the event's ``extra`` holds it as ``delivery``.
    :param extra: JSON values, which the event's ``extra`` holds as well.
    """
    with create_session() as session:
        asset = _lock_asset(session, uri)
        if asset is None:
            return "no asset"
        if _is_recorded(session, asset, digest):
            return "repeated"
        is_registered = _register_event(session, asset, {"delivery": digest, **extra})
        return "accepted" if is_registered else "no asset"


def _lock_asset(session: Session, uri: str) -> AssetModel | None:
    """Lock the row of an active asset until the end of the transaction; None if there is none."""
    is_the_asset = and_(AssetModel.uri == uri, AssetModel.active.has())
    # An update that changes nothing locks the row, or SQLite's database. It must come first: in
    # MySQL the first read may fix what the transaction sees.
    locking = update(AssetModel).where(is_the_asset).values(id=AssetModel.id)
    session.execute(locking.execution_options(synchronize_session=False))
    return session.scalar(select(AssetModel).where(is_the_asset))


def _is_recorded(session: Session, asset: AssetModel, delivery: str) -> bool:
    """Return whether an event of the last ``REMEMBERED_HOURS`` is of this delivery."""
    remembered_since = datetime.now(UTC) - timedelta(hours=REMEMBERED_HOURS)
    recorded_delivery = type_coerce(AssetEvent.extra, JSON)["delivery"].as_string()
    events = select(AssetEvent.id).where(
        AssetEvent.asset_id == asset.id,
        AssetEvent.timestamp >= remembered_since,
        recorded_delivery == delivery,
    )
    return session.scalar(events.limit(1)) is not None


def _register_event(session: Session, asset: AssetModel, extra: dict[str, Any]) -> bool:
    """Add an event of an asset, for the DAGs that it starts; return whether Airflow took it."""
    # Lock the queue's rows of this asset. Otherwise the scheduler could read the events before
    # this one, and then delete the row that this event relies on. Rows that the scheduler is
    # already consuming are gone afterwards.
    queue = select(AssetDagRunQueue).where(AssetDagRunQueue.asset_id == asset.id)
    session.scalars(queue.with_for_update()).all()
    event = asset_manager.register_asset_change(
        asset=asset, extra=extra, session=session, source_is_api=True
    )
    if event is None:
        return False
    session.flush()
    # A run consumes the events up to the time of its queue row, which the first event of a burst
    # creates. The others would wait for a run that nothing starts.
    for row in session.scalars(queue):
        row.created_at = max(row.created_at, event.timestamp)
    return True


def count_deliveries(*fsm_conn_ids: str) -> list[DeliveryCounts]:
    """Count the deliveries on connections' routes, and the refused ones on unknown routes.

    Routes whose asset no DAG uses are left out, unless this process has refused deliveries there.
    """
    uris = {
        f"{fsm_conn_id}/{watched}": uri_for_records(fsm_conn_id, watched)
        for fsm_conn_id in fsm_conn_ids
        for watched in get_args(WebhookObject)
    }
    a_day_ago = datetime.now(UTC) - timedelta(days=1)
    is_recent_event = and_(AssetEvent.asset_id == AssetModel.id, AssetEvent.timestamp >= a_day_ago)
    query = (
        select(AssetModel.uri, func.count(AssetEvent.id))
        .outerjoin(AssetEvent, is_recent_event)
        .where(AssetModel.uri.in_(uris.values()), AssetModel.active.has())
        .group_by(AssetModel.uri)
    )
    with create_session() as session:
        accepted = dict(session.execute(query).all())
    counts = []
    for route, uri in [*uris.items(), (UNKNOWN_ROUTE, "")]:
        refused = Counter(REFUSED.get(route))  # a copy: the receiver's event loop goes on counting
        counts.append(DeliveryCounts(route, accepted.get(uri), refused))
    return [count for count in counts if count.has_asset or count.refused]
