"""Show watermarks, and have forms handled again: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsm_provider.polling.watermark_arguments import make_parser
from fsm_provider.terminal import fail, print_table, printable, quiet_airflow

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from fsm_provider.api.form_filter import FormFilters, FormReference
    from fsm_provider.polling.polls import PollResult
    from fsm_provider.polling.watch import FormWatch

MAX_SHOWN = 20
"""Forms that a dry run prints."""
HEAD = ("watermark", "is in", "connection", "at (UTC)", "remark")


class RefusedError(Exception):
    """The request is refused, and nothing was changed."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider watermark") -> int:
    """Do what the subcommand says; return the exit code described in ``--help``."""
    options = make_parser(prog).parse_args(arguments)
    try:
        with quiet_airflow():
            from airflow.providers.common.compat.sdk import AirflowException
            from sqlalchemy.exc import SQLAlchemyError

            from fsm_provider.api.errors import FsmError
    except ImportError as error:
        return fail(2, str(error))
    try:
        with quiet_airflow():
            lines, rows = COMMANDS[options.command](options)
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        return fail(2, f"the database: {getattr(error, 'orig', None) or type(error).__name__}")
    except (AirflowException, FsmError, ImportError) as error:
        return fail(2, str(error))
    for line in lines:
        print(printable(line))
    if rows:
        print_table(rows[0], rows[1:])
    return 0


Output = tuple[list[str], list[tuple[str, ...]]]
"""Lines, and below them a table, its head first."""


def _show(options: argparse.Namespace) -> Output:
    rows: list[tuple[str, ...]] = []
    if options.where == "variable":
        if options.name is None:
            raise RefusedError("--variable: which? Give its name")
        rows.append((options.name, "a Variable", "-", _text(_read_variable(options.name)), ""))
    else:
        if options.where != "asset":
            rows += _rows_of_database(options.conn_id)
        if options.where != "database":
            rows += [asyncio.run(_row_of_asset(watch)) for watch in _watches().values()]
        rows = [row for row in rows if options.name in (None, row[0])]
    if not rows:
        raise RefusedError("nothing was found; for a Variable, add --variable")
    return [], [HEAD, *rows]


def _rewind(options: argparse.Namespace) -> Output:
    to = _past("--to", options.to)
    where = options.where or _where(options)
    if where == "asset":
        return asyncio.run(_replay_asset(options, to, None))
    with _database(options.conn_id) if where == "database" else nullcontext() as database:
        if database is None:
            old = _read_variable(options.name)
        else:
            from fsm_provider.state.sql_watermarks import SqlWatermark, sql_watermarks

            engine, service, _ = database
            times = sql_watermarks(engine, service)
            if options.name not in times:
                raise RefusedError(f"'{options.name}': is not in the database")
            old = times[options.name]
        if to > old and not options.force:
            raise RefusedError(
                f"'{options.name}' is at {_text(old)}: a later time would skip forms; add --force if you "
                "mean that"
            )
        moved = f"{options.name}: from {_text(old)} to {_text(to)}"
        if options.dry_run:
            result = _poll(options.conn_id, {"updated_since": to.isoformat()}, None)
            forms = result.references
            return _forms(
                f"{moved}: {len(forms)} forms were updated since then, whatever the DAG lists", forms
            )
        if database is None:
            from airflow.models import Variable
            from airflow.utils.session import create_session
            from sqlalchemy import select

            with create_session() as session:
                stored = session.scalar(select(Variable).where(Variable.key == options.name))
                if stored is None:
                    raise RefusedError(f"Variable {options.name} is not in Airflow's database")
                stored.set_val(to.isoformat())
        elif not SqlWatermark(engine, service, options.name).replace(old, to):
            raise RefusedError(f"'{options.name}' has just been moved by a run; nothing was changed")
    return [moved, "A run that has already begun sets it forward again when it succeeds."], []


def _replay(options: argparse.Namespace) -> Output:
    since, until = _past("--from", options.since), _past("--to", options.to)
    if until <= since:
        raise RefusedError("--to: is not after --from")
    return asyncio.run(_replay_asset(options, since, until))


async def _replay_asset(options: argparse.Namespace, since: datetime, until: datetime | None) -> Output:
    """Have an asset's watcher emit forms again, or list those that it would."""
    from fsm_provider.api.form_filter import parse_reference_time
    from fsm_provider.polling.new_forms import is_within
    from fsm_provider.polling.stored_trackers import (
        REPLAY,
        Replay,
        is_done,
        restore,
        stored_watermarks,
        tracker_for,
    )
    from fsm_provider.state.server_asset_store import ServerAssetStore

    if (watch := _watches().get(options.name)) is None:
        raise RefusedError(f"'{options.name}': no active asset of this name has been watched")
    store = ServerAssetStore(options.name)
    watermarks = await stored_watermarks(watch, store)
    earlier: Replay | None = await store.aget(REPLAY)
    if earlier and earlier["fsm_conn_id"] == watch["fsm_conn_id"] and not is_done(earlier, watermarks):
        raise RefusedError(f"'{options.name}': its watcher has not begun yet what was requested before")
    if not any(one["moment"] for one in watermarks.values()):
        raise RefusedError(f"'{options.name}': its watcher is still at the forms of its first poll")
    start = parse_reference_time(watch["start_from"])
    if start and since < start:
        raise RefusedError(f"'{options.name}': its start_from is {_text(start)}, later than {_text(since)}")
    period = f"updated since {_text(since)}" + (f" and before {_text(until)}" if until else "")
    if options.dry_run:
        tracker = tracker_for(watch)
        await restore(tracker, watch, store)
        tracker.replay(since, until)
        query = tracker.next_query(0.0, datetime.now(UTC))
        result = _poll(watch["fsm_conn_id"], query.filters, watch["query_params"])
        forms = [
            form
            for form in tracker.ingest(query, result, 0.0)
            if is_within(parse_reference_time(form["lastUpdatedOnDateTime"]), since, until)
        ]
        return _forms(f"{options.name}: {len(forms)} forms {period} would be emitted", forms)
    request = Replay(
        id=uuid4().hex,
        fsm_conn_id=watch["fsm_conn_id"],
        since=since.isoformat(),
        until=until.isoformat() if until else None,
    )
    store.set(REPLAY, request)
    row = await _row_of_asset(watch)
    return [
        f"{options.name}: was at {row[3]}; its watcher emits the forms {period} again",
        "It begins within a minute, or when it is next started.",
    ], []


def _where(options: argparse.Namespace) -> str:
    """Return where the watermark of a name is that is not a Variable."""
    found = [row[1] for row in _rows_of_database(options.conn_id) if row[0] == options.name]
    places = ["database"] * bool(found) + ["asset"] * (options.name in _watches())
    if len(places) == 1:
        return places[0]
    if places:
        raise RefusedError(f"'{options.name}' is in the database, and an asset: add --database or --asset")
    raise RefusedError(f"'{options.name}': nothing was found; for a Variable, add --variable")


def _rows_of_database(conn_id: str) -> list[tuple[str, ...]]:
    from fsm_provider.state.sql_tables import has_tables
    from fsm_provider.state.sql_watermarks import sql_watermarks

    with _database(conn_id) as database:
        if database is None or not has_tables(database[0]):
            return []
        engine, service, state_conn_id = database
        return [
            (name, f"database {state_conn_id}", conn_id, _text(at), "")
            for name, at in sql_watermarks(engine, service).items()
        ]


@contextmanager
def _database(conn_id: str) -> Iterator[tuple[Engine, str, str] | None]:
    """Open the database that a connection names, if any; yield it, the service, and the connection's id."""
    from fsm_provider.compat import hook_outside_of_tasks, read_connection_outside_of_tasks
    from fsm_provider.hooks.fsm import service_of, state_conn_id_of
    from fsm_provider.state.sql_tables import engine_for

    connection = read_connection_outside_of_tasks(conn_id)
    if (state_conn_id := state_conn_id_of(connection)) is None:
        yield None
        return
    engine = engine_for(state_conn_id, hook_outside_of_tasks)
    try:
        yield engine, service_of(connection), state_conn_id
    finally:
        engine.dispose()


def _watches() -> dict[str, FormWatch]:
    """Return the current configuration of each asset that has been watched, by name."""
    from fsm_provider.polling.configurations import CONFIGURATIONS
    from fsm_provider.state.server_asset_store import values_of_assets

    watches = [known[-1]["watch"] for known in values_of_assets(CONFIGURATIONS) if known]
    return {watch["asset_name"]: watch for watch in sorted(watches, key=lambda one: one["asset_name"])}


async def _row_of_asset(watch: FormWatch) -> tuple[str, ...]:
    from fsm_provider.polling.new_forms import polled_until
    from fsm_provider.polling.stored_trackers import REPLAY, is_done, stored_watermarks
    from fsm_provider.state.server_asset_store import ServerAssetStore

    store = ServerAssetStore(watch["asset_name"])
    watermarks = await stored_watermarks(watch, store)
    replay = await store.aget(REPLAY)
    newest = max(
        watermarks.values(),
        key=lambda one: polled_until(one) or datetime.min.replace(tzinfo=UTC),
        default=None,
    )
    moment = newest and newest["moment"]
    remarks = ["more forms are to be emitted"] * bool(newest and "polled" in newest)
    if replay and not is_done(replay, watermarks):
        remarks.append("a replay is requested")
    at = _text(datetime.fromisoformat(moment)) if moment else "-"
    return watch["asset_name"], "an asset", watch["fsm_conn_id"], at, ", ".join(remarks)


def _read_variable(name: str) -> datetime:
    from fsm_provider.api.validation import parse_time
    from fsm_provider.state.variables import read_variable_in_server

    if (text := read_variable_in_server(name)) is None:
        raise RefusedError(f"there is no Variable {name}")
    return parse_time(f"Variable {name}", text)


def _poll(conn_id: str, filters: FormFilters, params: dict[str, Any] | None) -> PollResult:
    """Read a listing to its end."""
    from fsm_provider.api.client import FsmClient
    from fsm_provider.compat import read_connection_outside_of_tasks
    from fsm_provider.hooks.fsm import settings_from
    from fsm_provider.polling.form_poll import FormPoll

    poll = FormPoll(filters, params)
    with closing(FsmClient(settings_from(read_connection_outside_of_tasks(conn_id)))) as client:
        while (result := poll.read_page(client)) is None:
            pass
    return result


def _forms(line: str, forms: list[FormReference]) -> Output:
    if not forms:
        return [line], []
    head = ("form", "name", "updated", "job", "property")
    keys = ("id", "formName", "lastUpdatedOnDateTime", "jobID", "propertyID")
    shown: list[dict[str, Any]] = [{**form} for form in forms[:MAX_SHOWN]]
    return [line], [head, *(tuple(str(form[key]) for key in keys) for form in shown)]


def _past(option: str, text: str) -> datetime:
    from fsm_provider.api.validation import parse_time

    if (time := parse_time(option, text)) > datetime.now(UTC):
        raise RefusedError(f"{option}: {_text(time)} is in the future")
    return time


def _text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%FT%TZ}"


COMMANDS = {"show": _show, "rewind": _rewind, "replay": _replay}
