"""What the page shows to a user: connections, their ledgers, and the watchers of their assets."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.utils.session import create_session
from fastapi import Query
from sqlalchemy import select

from fsm_provider.api.errors import FsmInputError, FsmNoLedgerError
from fsm_provider.api.settings import Settings, job_page_url
from fsm_provider.api.validation import canonical_id
from fsm_provider.hooks.connection import (
    CONN_TYPE,
    hook_outside_of_tasks,
    read_connection_outside_of_tasks,
    settings_from,
)
from fsm_provider.plugins.page.access import dags_allowed
from fsm_provider.polling.asset_status import AssetStatus
from fsm_provider.user_errors import text_of
from fsm_provider.writes.admin import open_place
from fsm_provider.writes.ledger import EntryFilter, LedgerEntry, LedgerReader

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
PageNumber = Annotated[int, Query(ge=1, le=1_000)]

ROWS = 100  # on a page
MAX_SETTLED = 50
MAX_NOTED = 1_000  # entries among which the settled ones are looked for
NEWEST = 600  # entries of Airflow's store
# In the notes that writes/admin.py makes.
_SETTLED_AT = re.compile(r", says .* at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC: ", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class View:
    """What a user asks for: the query of the page's address.

    :param q: a part of a key or a reference, or the id of a job.
    :param page, waits: numbers of pages of what is uncertain, and of waits.
    :param names: count the missing forms.
    :param settled: the id of the entry that was settled just now.
    """

    conn_id: str = ""
    q: str = ""
    property: str = ""
    page: PageNumber = 1
    waits: PageNumber = 1
    names: bool = False
    settled: str = ""

    def stripped(self) -> Self:
        return replace(self, q=self.q.strip(), property=canonical_id(self.property))

    def query(self, **changes: Any) -> str:
        """Return the address's query with changes, without what has its default."""
        changed = asdict(replace(self, settled="", **changes))
        defaults = asdict(View())
        given = {name: value for name, value in changed.items() if value != defaults[name]}
        return f"?{urlencode(given)}"


@dataclass(frozen=True)
class Row:
    """An entry, and the connection in whose ledger it is; empty: no connection leads there now."""

    conn_id: str
    entry: LedgerEntry


@dataclass(kw_only=True)
class LedgerSection:
    """What the page shows of all ledgers to a user.

    :param found: the entries that the user looks for: the last of so many ``number_found``.
    :param settled: what people have settled or forgotten last.
    :param totals: how many entries there are, by state.
    :param written: the same, by day and state.
    :param editable_dags: those whose writes the user may settle.
    :param absent: connections without a ledger, by the connection of its database.
    :param unreadable: connections whose ledger cannot be read.
    """

    uncertain: list[Row] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)
    number_found: int = 0
    settled: list[Row] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    written: Counter[tuple[int, str]] = field(default_factory=Counter)
    editable_dags: set[str] = field(default_factory=set)
    absent: dict[str, list[str]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def read_connections(
    conn_ids: Iterable[str], listed: Collection[str]
) -> tuple[dict[str, Settings], dict[str, str]]:
    """Return the settings of connections, and why those of others cannot be read.

    A connection that is not ``listed`` is in neither if it does not exist, or is of another type.
    """
    settings = {}
    broken = {}
    for conn_id in conn_ids:
        is_ours = conn_id in listed
        try:
            connection = read_connection_outside_of_tasks(conn_id)
            is_ours = is_ours or connection.conn_type in (None, "", CONN_TYPE)
            settings[conn_id] = settings_from(connection)
        except (AirflowNotFoundException, FsmInputError) as error:
            if is_ours:
                broken[conn_id] = str(error)
        except Exception as error:  # noqa: BLE001 - it hides no other connection
            log(error)
            broken[conn_id] = "the log of the API server says why"
    return settings, broken


def read_ledgers(user: Any, settings: Mapping[str, Settings], view: View) -> LedgerSection:
    """Return what the ledgers of connections have; each database is opened once."""
    section = LedgerSection()
    places: dict[str | None, list[str]] = defaultdict(list)
    state_conn_ids = {connection.state_conn_id for connection in settings.values()}
    databases = {state_conn_id: _database_of(state_conn_id) for state_conn_id in state_conn_ids}
    for conn_id, connection in settings.items():
        places[databases[connection.state_conn_id]].append(conn_id)
    if not AIRFLOW_V_3_3_PLUS:
        places.pop(None, None)  # no task can write without a database
    for conn_ids in places.values():
        state_conn_id = settings[conn_ids[0]].state_conn_id
        # Of two that share a service, the first names its rows.
        conn_id_by_service = {settings[conn_id].service: conn_id for conn_id in reversed(conn_ids)}
        try:
            services = conn_id_by_service if view.conn_id else None
            with open_place(state_conn_id, services, NEWEST) as ledgers:
                _add_ledgers(section, user, ledgers, conn_id_by_service, view)
        except FsmNoLedgerError as error:
            section.absent[error.place] = conn_ids
        except Exception as error:  # noqa: BLE001 - the other ledgers stand
            log(error)
            section.unreadable += conn_ids
    shown = slice((view.page - 1) * ROWS, view.page * ROWS)
    section.uncertain = sorted(section.uncertain, key=_sent_at, reverse=True)[shown]
    section.found = sorted(section.found, key=_sent_at, reverse=True)[:ROWS]
    settled = filter(_settled_at, section.settled)  # the others have notes of late responses
    section.settled = sorted(settled, key=_settled_at, reverse=True)[:MAX_SETTLED]
    rows = section.uncertain + section.found
    section.editable_dags = dags_allowed("PUT", user, [dag_of(row.entry) for row in rows])
    return section


def _database_of(state_conn_id: str | None) -> str | None:
    """Return which database a ledger is in, as two connections may name one; None: Airflow's."""
    if state_conn_id is None:
        return None
    from fsm_provider.state.database import database_url

    try:
        return database_url(state_conn_id, hook_outside_of_tasks)
    except Exception:  # noqa: BLE001 - whoever opens it says why
        return state_conn_id


def _add_ledgers(
    section: LedgerSection,
    user: Any,
    ledgers: LedgerReader,
    conn_id_by_service: Mapping[str, str],
    view: View,
) -> None:
    """Add the ledgers of one database."""

    def add(rows: list[Row], wanted: EntryFilter, latest: int) -> None:
        for _, entry in ledgers.entries(wanted, latest):
            # In Airflow's store a task may have written to other services, too.
            if entry.service in conn_id_by_service or not view.conn_id:
                rows.append(Row(conn_id_by_service.get(entry.service, ""), entry))

    tallies = ledgers.counts()
    here = our_airflows()
    visible_dags = dags_allowed("GET", user, {tally.dag_id for tally in tallies})
    for tally, number in tallies.items():
        if tally.airflow in here and tally.dag_id in visible_dags:
            section.totals[tally.state] += number
            section.written[tally.day, tally.state] += number
    ours = EntryFilter(sent_by={"dag_id": visible_dags, "airflow": here})
    add(section.uncertain, replace(ours, is_open=True), view.page * ROWS)
    add(section.settled, replace(ours, has_note=True), MAX_NOTED)
    if view.q or view.property:
        wanted = replace(ours, part=view.q, property_id=view.property)
        section.number_found += ledgers.number_of(wanted)
        add(section.found, wanted, ROWS)


def our_airflows() -> Collection[str]:
    """Return the names under which this Airflow writes.

    It does not know who may see the DAGs of others.
    """
    return {"", conf.get("fsm", "airflow_name", fallback="")}


def dag_of(entry: LedgerEntry) -> str | None:
    """Return the id of the DAG that sent a write; None for a DAG of another Airflow."""
    return entry.sent_by.dag_id if entry.sent_by.airflow in our_airflows() else None


def owners_of(ledgers: LedgerSection, waits: Iterable[Any]) -> dict[str, str]:
    """Return the owners of the DAGs whose writes and waits are shown."""
    dag_ids = {row.entry.sent_by.dag_id for row in ledgers.uncertain + ledgers.found}
    dag_ids.update(wait.dag_id for wait in waits)
    query = select(DagModel.dag_id, DagModel.owners).where(DagModel.dag_id.in_(dag_ids))
    with create_session() as session:
        return {dag_id: owners for dag_id, owners in session.execute(query) if owners}


def _sent_at(row: Row) -> int:
    return row.entry.sent_at


def _settled_at(row: Row) -> str:
    """Return when people last settled an entry; empty: they have not."""
    times = _SETTLED_AT.findall(row.entry.note or "")
    return str(times[-1]) if times else ""


def assets_for(user: Any, view: View, assets: Iterable[AssetStatus]) -> list[AssetStatus]:
    """Return the assets of a connection that start no DAG, or one that the user may see."""
    shown = []
    for asset in assets:
        is_wanted = view.conn_id in ("", asset.fsm_conn_id)
        is_visible = not asset.dag_ids or dags_allowed("GET", user, asset.dag_ids)
        if is_wanted and is_visible:
            shown.append(asset)
            if asset.read_error:
                log(asset.read_error)
    return shown


def sees_dags(user: Any, asset: AssetStatus) -> bool:
    """Return whether a user may see all DAGs that an asset starts."""
    return dags_allowed("GET", user, asset.dag_ids) == asset.dag_ids


def may_begin(user: Any, asset: AssetStatus) -> bool:
    """Return whether a user may edit all DAGs that an asset starts."""
    return bool(asset.dag_ids) and dags_allowed("PUT", user, asset.dag_ids) == asset.dag_ids


def property_url(settings: Settings, property_id: str | None) -> str | None:
    """Return the URL of a property's jobs; None if ``web_url`` does not show where they are."""
    before_job = re.split(r"[^/?&]*\{id\}", settings.web_url or "")[0].rstrip("/?&")
    if not property_id or "{propertyID}" not in before_job:
        return None
    return job_page_url(before_job, "", property_id)


def service_url(settings: Settings) -> str | None:
    if not settings.web_url:
        return None
    return "://".join(urlsplit(settings.web_url)[:2])


def or_none(read: Callable[[], ResultT]) -> ResultT | None:
    """Return what is read; None if that fails, which the log explains."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the other sections stand
        log(error)
        return None


def log(error: Exception, failure: str = "The page cannot be read in full") -> None:
    """Log why something cannot be read or stored; a defect with its traceback."""
    text = text_of(error)
    is_defect = text is None
    logger.error("%s: %s", failure, text or type(error).__name__, exc_info=is_defect)
