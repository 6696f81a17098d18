"""Base class of the operators that write to the service, each write once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_choice, parse_count, parse_text
from fsm_provider.links import FsmUncertainLink
from fsm_provider.operators.base import FsmBaseOperator, OptionParsers, is_literal

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.request import TimeLimit
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.state.task import Task
    from fsm_provider.writes.ledger import WriteAttempt
    from fsm_provider.writes.runner import Runner
    from fsm_provider.writes.sql_ledger import SqlLedger
    from fsm_provider.writes.task_ledger import TaskLedger

logger: logging.Logger = logging.getLogger(__name__)

STOPPED = "the task was stopped"
FIRST = "fsm_ledger"
"""Key of the task state store: the service that the first attempt wrote to, and the id of its
ledger.
"""
IN_AIRFLOW = "Airflow"
NEEDS_DATABASE = """\
is missing: once_per="key", and every write before Airflow 3.3 or with clear_on_success of [state_store],
is recorded in a SQL database, so that nothing is sent twice.
Set state_conn_id in the extra of connection '{conn}' to fsm_ledger, and add that connection. On one machine:
  airflow connections add fsm_ledger --conn-type sqlite --conn-host /var/lib/airflow/fsm_ledger.db
For several workers:
  airflow connections add fsm_ledger --conn-uri postgres://user:password@host:5432/database
Install it with: pip install 'airflow-provider-fsm[sql]'"""


class FsmWriteOperator(FsmBaseOperator):
    """Base of the operators that write to the service, each write once, through a ledger.

    On Airflow 3.3 and newer it is in the task's state store; if the connection has
    ``state_conn_id``, and before Airflow 3.3, in that SQL database.

    :param once_per: ``run``: each run of the task sends a write once. ``key``: a key is sent once,
        whatever run, DAG or Airflow asks; this needs the database, and a key for each write
        (templated).
    :param if_uncertain: what to do if an earlier attempt has sent a write and nobody knows what
        became of it: ``fail``, or ``create`` it again once no earlier request can be on its way, at
        the risk of two (templated).
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "once_per", "if_uncertain")
    option_parsers: ClassVar[OptionParsers] = {
        "once_per": partial(parse_choice, choices=("run", "key")),
        "if_uncertain": partial(parse_choice, choices=("fail", "create")),
    }
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmUncertainLink(),)
    find_existing: Any = None
    _runner: Runner | None = None
    _is_stopped: bool = False

    def __init__(self, *, once_per: str = "run", if_uncertain: str = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.once_per = once_per
        self.if_uncertain = if_uncertain

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Check that each write has a key, if it is sent once for each; ``keys`` has them by
        argument.
        """
        if self.once_per == "key" and (
            missing := [name for name, key in keys.items() if key in (None, "")]
        ):
            raise FsmInputError(f"{', '.join(missing)}: is missing; once_per='key' needs it")
        for name, key in keys.items():
            if key not in (None, "") and is_literal(key):
                parse_text(name, key)

    def send_write(self, write: WriteAttempt, headers: dict[str, str], limit: TimeLimit) -> Any:
        raise NotImplementedError

    def existing_result(self, write: WriteAttempt) -> Any:
        """Return what is known of a write that an earlier attempt or another task has sent."""
        return {**(write.row.result or {}), **write.row.about} or None

    def find_write(self, write: WriteAttempt) -> int | None:
        found = self.find_existing(self.hook, write.payload.model_copy(deep=True))
        return None if found is None else parse_count("find_existing", found)

    @contextmanager
    def runner(
        self, context: Context, task: Task, writes: Collection[WriteAttempt], concurrency: int = 1
    ) -> Iterator[Runner]:
        """Open the ledger, for the block, and load writes; give what sends them."""
        from fsm_provider.writes.runner import Runner

        find, creates = (
            self.find_write if self.find_existing else None,
            self.if_uncertain == "create",
        )
        with _opened_ledger(context, self.hook, task, by_key=self.once_per == "key") as ledger:
            self._runner = Runner(
                ledger, task, self.hook, self.send_write, find, concurrency, creates
            )
            if self._is_stopped:  # while the ledger was opened
                self._runner.stop(STOPPED)
            self._runner.load(writes)
            yield self._runner

    def write_once(
        self, context: Context, task: Task, writes: Collection[WriteAttempt]
    ) -> list[Any]:
        """Send writes in order; return the result of each, once all have ended."""
        from fsm_provider.writes.ledger import result_of

        self.options()
        with self.runner(context, task, writes) as runner:
            runner.run()
        for one in writes:
            if error := runner.error_of(one):
                raise error from error.__cause__
            if not one.is_created:
                what = one.row, result_of(one.row, self.hook.settings.web_url), one.row.by
                self.log.info("%s (%s) was sent before, by %s: nothing was sent now", *what)
        return [one.response if one.is_created else self.existing_result(one) for one in writes]

    def on_kill(self) -> None:
        """Send nothing more; requests in flight are finished and recorded before the task ends."""
        self._is_stopped = True
        if self._runner:
            self._runner.stop(STOPPED)


@contextmanager
def _opened_ledger(
    context: Context, hook: FsmHook, task: Task, *, by_key: bool
) -> Iterator[SqlLedger | TaskLedger]:
    """Open the ledger of the running task, for the block.

    :raises FsmInputError: if there is none, or earlier attempts of this task have recorded
        elsewhere.
    """
    from fsm_provider.writes.task_ledger import TaskLedger

    service, state_conn_id = hook.settings.service, hook.settings.state_conn_id
    store = context.get("task_state_store")
    if "ti" not in context:
        if by_key:
            raise FsmInputError(
                "once_per: 'key' works in a task only, and this is not run as a task"
            )
        logger.warning(
            "This is not run as a task: nothing is recorded, and the next run sends it again"
        )
        yield TaskLedger(None, task)
    elif state_conn_id is not None:
        from fsm_provider.state.database import open_database
        from fsm_provider.writes.sql_ledger import SqlLedger, register, scope_of

        engine = open_database(state_conn_id)
        try:
            _check_first(store, service, register(engine, task, service))
            yield SqlLedger(engine, scope_of(task, service, by_key=by_key))
        finally:
            engine.dispose()
    elif (
        by_key
        or store is None
        or conf.getboolean("state_store", "clear_on_success", fallback=False)
    ):
        raise FsmInputError(f"state_conn_id: {NEEDS_DATABASE.format(conn=hook.fsm_conn_id)}")
    else:
        _check_first(store, service, {"service": service, "id": IN_AIRFLOW})
        yield TaskLedger(store, task)


def _check_first(store: Any, service: str, registered: dict[str, str]) -> None:
    """Check that this attempt writes to the service of the task's first one, with the same ledger.

    :param store: of Airflow 3.3, which keeps both as well as ``registered``, what the ledger has.
    """
    from fsm_provider.writes.task_ledger import NEVER_EXPIRE

    stored = None if store is None else store.get(FIRST)
    first = stored or registered
    for before in (registered["service"], first["service"]):
        if before != service:
            raise FsmInputError(
                f"host: earlier attempts of this task have written to {before}, and the connection "
                f"leads to {service} now. Nothing was sent: restore its host and login, or start "
                "another run"
            )
    if first["id"] != registered["id"]:
        other = "in another database, or under another airflow_name,"
        where = "in Airflow itself" if first["id"] == IN_AIRFLOW else other
        raise FsmInputError(
            f"state_conn_id: earlier attempts of this task have recorded {where} what they sent. "
            "Nothing was sent: restore that, or look in the service and start another run"
        )
    if store is not None and stored is None:
        store.set(FIRST, registered, retention=NEVER_EXPIRE)
