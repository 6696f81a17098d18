"""Test runs of DAGs that completed forms start.

One call does what watcher, triggerer and scheduler do.

Unlike the fake, this is made of what it tests: the poll, its filters and the event are the
watcher's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, event, select
from sqlalchemy.orm import Session

from fsm_provider.api.forms import FormFilter
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.polling.polls import BEGINNING, FormVersion, bound_at, list_once
from fsm_provider.polling.tracker import FormTracker
from fsm_provider.polling.watcher_config import WatcherConfig
from fsm_provider.triggers.forms import FsmFormConfigurationTrigger

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from fsm_provider.api.forms import FormReference

CONFIGURATION = (
    f"{FsmFormConfigurationTrigger.__module__}.{FsmFormConfigurationTrigger.__qualname__}"
)
MAX_NAMED = 10
"""Forms in one message."""


class FormRuns:
    """Runs DAGs with the forms that are new to them.

    A test calls :meth:`run` as often as it likes: a form that was in an event of a DAG is not new
    to that DAG any more. :meth:`close` removes the events from Airflow's database.
    """

    def __init__(self) -> None:
        self._watchers: dict[tuple[str, str], FormWatcher] = {}
        self._event_ids: list[int] = []

    def run(
        self,
        dag: DAG,
        *,
        other_events: Mapping[str, dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> DagRun:
        """Run a DAG as Airflow would after the next poll of its assets.

        The run has no logical date, and its events are in Airflow's database, where its tasks read
        them.

        :param dag: a DAG with assets of :func:`~fsm_provider.assets.forms.completed_forms` in its
            schedule.
        :param other_events: the extra of an event of each other asset that starts the run too, by
            its name.
        :param arguments: arguments of ``dag.test()``.
        :return: the run, which has ended.
        :raises ValueError: if the schedule has no asset of completed forms, or not one that
            ``other_events`` names.
        :raises AssertionError: if the DAG would not start, as forms or events are missing.
        :raises FsmError: if the service cannot be read.
        """
        condition = getattr(dag.timetable, "asset_condition", None)
        assets = {asset.name: asset for asset in _assets_in(condition)}
        configs = _configs_by_asset(dag, assets)
        extras = dict(other_events or {})
        missing = _missing_events(dag, assets.keys() - configs.keys(), extras.keys())

        watchers_with_forms = []
        for name, config in configs.items():
            watcher = self._watchers.setdefault((dag.dag_id, name), FormWatcher(config))
            forms = watcher.poll()
            if forms:
                watchers_with_forms.append(watcher)
                extras[name] = {"from_trigger": True, "payload": config.event_with(forms)}
            else:
                missing.append(watcher.why_none())
        if not watchers_with_forms or not _is_met(condition, extras.keys()):
            raise AssertionError(f"The DAG '{dag.dag_id}' would not start: {'; '.join(missing)}")

        event_ids = _store_events([(assets[name], extra) for name, extra in extras.items()])
        self._event_ids += event_ids
        for watcher in watchers_with_forms:
            watcher.record()
        with _started_by(event_ids, dag.dag_id):
            run: DagRun = dag.test(**arguments)
        return run

    def close(self) -> None:
        """Delete the events, which tasks could read as those of an inlet."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        if not self._event_ids:
            return
        with create_session() as session:
            session.execute(delete(AssetEvent).where(AssetEvent.id.in_(self._event_ids)))


class FormWatcher:
    """Polls for the forms of an asset that are new to one DAG.

    Each :meth:`poll` lists the forms and returns those of the next event. Before they start a run,
    :meth:`record` makes them old; after a poll without any, :meth:`why_none` tells why.

    :param config: the configuration of the asset's watcher.
    """

    def __init__(self, config: WatcherConfig) -> None:
        self._config = config
        self._tracker = FormTracker(config.selection())
        # Without a floor, the watcher begins "now", which is the beginning of the test.
        self._tracker.begin(config.first_floor() or BEGINNING)
        self._listed: list[FormVersion] = []

    def poll(self) -> list[FormReference]:
        """Poll once, and return the forms of the next event.

        :raises FsmError: if the service cannot be read.
        """
        filters: Any = self._config.filters
        since = bound_at(self._tracker.floor or BEGINNING)
        self._listed = []
        with closing(FsmHook(self._config.fsm_conn_id).client) as client:
            for query in self._config.selection().queries_by_place():
                form_filter = FormFilter(
                    **filters,
                    property_id=query.property_id,
                    job_id=query.job_id,
                    updated_since=since,
                )
                listing = list_once(client, form_filter, self._config.query_params)
                self._listed += listing.forms
                self._tracker.ingest(listing.forms, listing.started)
        forms = self._tracker.take_event(self._config.max_forms_per_event)
        return [form.reference for form in forms]

    def why_none(self) -> str:
        """Return a message about the last poll, which found no new form."""
        question = {name: value for name, value in self._config.question().items() if value}
        first_listed = self._listed[:MAX_NAMED]
        names = [f"{form.id} '{form.reference['formName']}'" for form in first_listed]
        if len(self._listed) > MAX_NAMED:
            names.append("...")
        return (
            f"the asset '{self._config.asset_name}' has no new form. It asks for {question}; "
            f"listed: {', '.join(names) or 'none'}"
        )

    def record(self) -> None:
        """Record that the forms of the last poll are in an event."""
        self._tracker.confirm_event(time.time())


def _configs_by_asset(dag: DAG, assets: Mapping[str, Any]) -> dict[str, WatcherConfig]:
    """Return the configurations of those assets that are of completed forms.

    :raises ValueError: if there is none.
    """
    configs = {}
    for name, asset in assets.items():
        config = _config_of(asset)
        if config is not None:
            configs[name] = config
    if not configs:
        raise ValueError(
            f"The DAG '{dag.dag_id}' has no asset of completed_forms in its schedule, so no "
            f"form starts it. Its assets: {', '.join(assets) or 'none'}"
        )
    return configs


def _missing_events(dag: DAG, others: Set[str], other_events: Set[str]) -> list[str]:
    """Return a message for each other asset that is not in ``other_events``.

    :raises ValueError: if ``other_events`` has an asset that is none of the others.
    """
    unknown = other_events - others
    if unknown:
        raise ValueError(
            f"other_events: {', '.join(sorted(unknown))}: the DAG '{dag.dag_id}' has no other "
            f"asset of this name. Its other assets: {', '.join(sorted(others)) or 'none'}"
        )
    missing = sorted(others - other_events)
    return [f"other_events has none of the asset '{name}'" for name in missing]


def _assets_in(condition: Any) -> Iterator[Any]:
    """Yield the assets of a schedule; not those that it refers to by alias, name or URI."""
    if hasattr(condition, "watchers"):
        yield condition
    for part in getattr(condition, "objects", ()):
        yield from _assets_in(part)


def _is_met(condition: Any, names: Collection[str]) -> bool:
    """Return whether a schedule starts a run once the assets of these names have events."""
    if not hasattr(condition, "objects"):
        return hasattr(condition, "watchers") and condition.name in names
    parts = [_is_met(part, names) for part in condition.objects]
    # Since Airflow 3.2, timetables outside of airflow.sdk have classes of their own.
    if type(condition).__name__ in ("AssetAll", "SerializedAssetAll"):
        return all(parts)
    return any(parts)


def _config_of(asset: Any) -> WatcherConfig | None:
    """Return the configuration of an asset's watcher, None if it is no asset of completed forms."""
    for watcher in asset.watchers:
        trigger = watcher.trigger
        if isinstance(trigger, dict):
            classpath = trigger["classpath"]
            arguments = trigger["kwargs"]
        else:
            classpath, arguments = trigger.serialize()
        if classpath == CONFIGURATION:
            return WatcherConfig.from_json(json.loads(arguments["watch"]))
    return None


def _store_events(extras: list[tuple[Any, dict[str, Any]]]) -> list[int]:
    """Store an event of each asset with an extra, as a triggerer does; return the events' ids."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        events = []
        for asset, extra in extras:
            query = select(AssetModel).filter_by(name=asset.name, uri=asset.uri)
            model = session.scalar(query)
            if model is None:
                # dag.test() stores a DAG's assets later, and on Airflow 3.0 not at all.
                model = AssetModel(name=asset.name, uri=asset.uri, group=asset.group)
                session.add(model)
                session.flush()
            events.append(AssetEvent(asset_id=model.id, extra=extra))
        session.add_all(events)
        session.flush()
        return [asset_event.id for asset_event in events]


@contextmanager
def _started_by(event_ids: list[int], dag_id: str) -> Iterator[None]:
    """Make the next run of a DAG one that these events start, as a scheduler does."""
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    started: list[DagRun] = []

    def start(session: Session, *_: object) -> None:
        for run in session.new:
            is_of_dag = isinstance(run, DagRun) and run.dag_id == dag_id
            if started or not is_of_dag:
                continue
            started.append(run)
            run.run_type = DagRunType.ASSET_TRIGGERED
            run.triggered_by = DagRunTriggeredByType.ASSET
            run.run_id = DagRun.generate_run_id(run_type=run.run_type, run_after=run.run_after)
            run.logical_date = None
            run.data_interval_start = None
            run.data_interval_end = None
            events = session.scalars(select(AssetEvent).where(AssetEvent.id.in_(event_ids)))
            run.consumed_asset_events.extend(events)

    event.listen(Session, "before_flush", start)
    try:
        yield
    finally:
        event.remove(Session, "before_flush", start)
