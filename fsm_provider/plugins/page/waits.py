"""The sensors that wait, from Airflow's table of task instances: those of DAGs that a user may see.

A deferred sensor has stored what it waits for (:mod:`fsm_provider.polling.waiting`). Of the others,
which poll on a worker, or were deferred by an older version of this package, Airflow has the
arguments, as it has rendered them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.models import TaskInstance
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from sqlalchemy import Text, and_, case, cast, func, or_, select

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import canonical_id
from fsm_provider.plugins.page.access import dags_allowed
from fsm_provider.plugins.page.reading import ROWS, View
from fsm_provider.polling.places import Identified, identified
from fsm_provider.polling.waiting import WAITING_KWARG, text_of_field, waiting_in
from fsm_provider.triggers.forms import TIMEOUT_GRACE

SENSORS = ("FsmFormSensor", "FsmRecordSensor")
STATES_WITH_DESCRIPTION = ("deferred", "scheduled", "queued", "running")
STATES_WITHOUT_DESCRIPTION = ("running", "up_for_reschedule", "up_for_retry", "deferred")
TIME_TO_ASSIGN = timedelta(seconds=60)
"""After which a triggerer that has room has taken a sensor."""
STATES_BETWEEN_POLLS = ("scheduled", "queued")
"""Of a sensor that has begun, if Airflow has rendered its arguments; else it has not."""
_STORED = cast(TaskInstance.next_kwargs, Text)
_RENDERED = cast(Rendered.rendered_fields, Text)
_IS_DESCRIBED = and_(
    TaskInstance.state.in_(STATES_WITH_DESCRIPTION), _STORED.contains(f'"{WAITING_KWARG}"')
)
_IS_UNDESCRIBED = and_(
    or_(
        TaskInstance.state.in_(STATES_WITHOUT_DESCRIPTION),
        and_(TaskInstance.state.in_(STATES_BETWEEN_POLLS), Rendered.dag_id.is_not(None)),
    ),
    TaskInstance.operator.in_(SENSORS),
    func.coalesce(_STORED, "").not_like(f'%"{WAITING_KWARG}"%'),
)
_TASK = ("dag_id", "run_id", "task_id", "map_index")
_COLUMNS = [getattr(TaskInstance, name) for name in (*_TASK, "state", "start_date", "next_kwargs")]
_IS_OF_SAME_TASK = and_(*(getattr(Rendered, name) == getattr(TaskInstance, name) for name in _TASK))


class WaitSection(NamedTuple):
    """The waits of DAGs that a user may see.

    :ivar shown: rows of the page that is asked for; those that end first come first.
    :ivar number: of all, of which so many ``end_soon``: within a day.
    :ivar end_unknown: how many of all may end at any time: they do not wait in a triggerer.
    :ivar unpolled: how many deferred ones are in no triggerer that runs, a minute after.
    :ivar has_triggerer: whether one is running, without which no deferred sensor goes on.
    :ivar missing: how many waits lack a form, by its name; empty unless it is asked for.
    """

    shown: Sequence[Any]
    number: int
    end_soon: int
    end_unknown: int
    unpolled: int
    has_triggerer: bool
    missing: Counter[str]


def read_waits(user: Any, view: View, running: Iterable[Any]) -> WaitSection:
    """Return the waits of a connection and a property; empty: of all.

    :param running: the jobs of Airflow's components.
    """
    is_wait = or_(_IS_DESCRIBED, _IS_UNDESCRIBED)
    if view.conn_id:
        is_wait = and_(is_wait, _is_for_connection(view.conn_id))
    tomorrow = datetime.now(UTC) + timedelta(days=1, seconds=TIMEOUT_GRACE)
    ends_soon = case((TaskInstance.trigger_timeout < tomorrow, 1))
    triggerers = [job.id for job in running if job.job_type == "TriggererJob"]
    is_unpolled = and_(
        TaskInstance.state == "deferred",
        Trigger.created_date < datetime.now(UTC) - TIME_TO_ASSIGN,
        or_(Trigger.triggerer_id.is_(None), Trigger.triggerer_id.not_in(triggerers)),
    )
    number = 0
    end_soon = 0
    end_known = 0
    unpolled = 0
    missing = Counter[str]()
    with create_session() as session:
        if view.property:
            is_wait = _is_for_property(session, is_wait, view.property)
        counting = (
            select(
                TaskInstance.dag_id,
                func.count(),
                func.count(ends_soon),
                func.count(TaskInstance.trigger_timeout),
                func.count(case((is_unpolled, 1))),
            )
            .outerjoin(Rendered, _IS_OF_SAME_TASK)
            .outerjoin(Trigger, Trigger.id == TaskInstance.trigger_id)
            .where(is_wait)
            .group_by(TaskInstance.dag_id)
        )
        counts = session.execute(counting).all()
        visible_dags = dags_allowed("GET", user, [dag_id for dag_id, *_ in counts])
        for dag_id, of_dag, soon_of_dag, known_of_dag, unpolled_of_dag in counts:
            if dag_id in visible_dags:
                number += of_dag
                end_soon += soon_of_dag
                end_known += known_of_dag
                unpolled += unpolled_of_dag
        listing = (
            select(*_COLUMNS, Rendered.rendered_fields)
            .outerjoin(Rendered, _IS_OF_SAME_TASK)
            .where(is_wait, TaskInstance.dag_id.in_(visible_dags))
            # Databases sort NULL differently: a task on a worker has no such time.
            .order_by(
                case((TaskInstance.trigger_timeout.is_(None), 1), else_=0),
                TaskInstance.trigger_timeout,
                TaskInstance.start_date,
            )
        )
        shown = session.execute(listing.limit(ROWS).offset((view.waits - 1) * ROWS)).all()
        if view.names:
            for row in session.execute(listing):
                waiting = waiting_in(row.next_kwargs)
                missing.update(waiting.missing if waiting else ())
    end_unknown = number - end_known
    return WaitSection(shown, number, end_soon, end_unknown, unpolled, bool(triggerers), missing)


def rendered_place(fields: Any, name: str) -> Identified:
    """Return the job or property in a sensor's arguments; it may be given as a record."""
    arguments = fields if isinstance(fields, Mapping) else {}
    for value in (arguments.get(f"{name}_id"), arguments.get(name)):
        with suppress(FsmInputError):
            place = identified(name, value)
            if isinstance(place.identifier, int | float | str):
                return place
    return Identified()


def property_of(wait: Any) -> str:
    """Return the property that a sensor waits for, in its one spelling; empty: it names none."""
    waiting = waiting_in(wait.next_kwargs)
    if waiting is not None:
        return waiting.property_id or ""
    given = rendered_place(wait.rendered_fields, "property").identifier
    if given is None:
        given = rendered_place(wait.rendered_fields, "job").property_id
    return "" if given is None else canonical_id(given)


def _is_for_connection(fsm_conn_id: str) -> Any:
    """Return the condition that a sensor waits by a connection."""
    in_stored = _STORED.contains(text_of_field("fsm_conn_id", fsm_conn_id), autoescape=True)
    in_rendered = _RENDERED.contains(f'"fsm_conn_id": "{fsm_conn_id}"', autoescape=True)
    return or_(in_stored, in_rendered)


def _is_for_property(session: Any, is_wait: Any, property_id: str) -> Any:
    """Return the condition that a sensor waits for a property, however its arguments spell it."""
    in_stored = _STORED.contains(text_of_field("property_id", property_id), autoescape=True)
    query = (
        select(TaskInstance.id, TaskInstance.next_kwargs, Rendered.rendered_fields)
        .outerjoin(Rendered, _IS_OF_SAME_TASK)
        .where(is_wait, or_(in_stored, _IS_UNDESCRIBED))
    )
    waits = session.execute(query)
    return TaskInstance.id.in_([wait.id for wait in waits if property_of(wait) == property_id])
