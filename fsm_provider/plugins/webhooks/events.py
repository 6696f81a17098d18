"""Record deliveries as asset events, each once, and count them; here are Airflow's internals."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from fsm_provider.api.payloads import WebhookObject
from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.storage import uri_for_records

Outcome = Literal["accepted", "repeated", "no asset"]
UNKNOWN = "-/-"
REFUSED: dict[str, Counter[str]] = defaultdict(Counter)
"""How often this process has refused deliveries, by endpoint and reason. What is refused is not
stored.
"""


def record_delivery(uri: str, delivery: str, extra: dict[str, Any]) -> Outcome:
    """Record a delivery, unless it repeats one of the last 24 hours; return once it is stored.

    Earlier deliveries are found among the asset's events, in a transaction that locks the asset's
    row. So repeats are dropped by all workers of all API servers, also after restarts. It waits for
    the database: call it in a thread.

    :param uri: the URI of the asset, which some DAG has to use.
    :param delivery: distinguishes the delivery; the event's ``extra`` holds it as ``delivery``.
    """
    from airflow.assets.manager import asset_manager
    from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import JSON, select, type_coerce, update

    with create_session() as session:
        active = AssetModel.uri == uri, AssetModel.active.has()
        # An update that changes nothing locks the row, or SQLite's database, until the end of the
        # transaction. It must come first: in MySQL the first read may fix what the transaction
        # sees.
        locking = update(AssetModel).where(*active).values(id=AssetModel.id)
        session.execute(locking.execution_options(synchronize_session=False))
        asset = session.scalar(select(AssetModel).where(*active))
        if asset is None:
            return "no asset"
        earlier = select(AssetEvent.id).where(
            AssetEvent.asset_id == asset.id,
            AssetEvent.timestamp >= datetime.now(UTC) - timedelta(hours=REMEMBERED_HOURS),
            type_coerce(AssetEvent.extra, JSON)["delivery"].as_string() == delivery,
        )
        if session.scalar(earlier.limit(1)) is not None:
            return "repeated"
        # Otherwise the scheduler could read the events before this one, and then delete the queue's
        # row that this one relies on. Rows that it is already consuming are gone afterwards.
        queue = select(AssetDagRunQueue).where(AssetDagRunQueue.asset_id == asset.id)
        session.scalars(queue.with_for_update()).all()
        event = asset_manager.register_asset_change(
            asset=asset, extra={"delivery": delivery, **extra}, session=session, source_is_api=True
        )
        if event is None:
            return "no asset"
        session.flush()
        # A run consumes the events up to the time of its queue row, which the first event of a
        # burst creates. The others would wait for a run that nothing starts.
        for row in session.scalars(queue):
            row.created_at = max(row.created_at, event.timestamp)
        return "accepted"


def deliveries(fsm_conn_id: str) -> list[tuple[str, int | None, Counter[str]]]:
    """Count the deliveries of the last day by endpoint, None where no DAG uses its asset; and
    ``REFUSED``.
    """
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import and_, func, select

    routes = {
        f"{fsm_conn_id}/{one}": uri_for_records(fsm_conn_id, one) for one in get_args(WebhookObject)
    }
    is_recent = AssetEvent.timestamp >= datetime.now(UTC) - timedelta(days=1)
    events = AssetModel.id == AssetEvent.asset_id, is_recent
    query = select(AssetModel.uri, func.count(AssetEvent.id)).outerjoin(AssetEvent, and_(*events))
    query = query.where(AssetModel.uri.in_(routes.values()), AssetModel.active.has()).group_by(
        AssetModel.uri
    )
    with create_session() as session:
        accepted: dict[str, int] = dict(iter(session.execute(query)))
    counts = [(one, accepted.get(routes.get(one, "")), REFUSED[one]) for one in (*routes, UNKNOWN)]
    return [one for one in counts if one[1] is not None or one[2]]
