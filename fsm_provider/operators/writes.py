"""Base class of the operators that write to the service, each write once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_choice, parse_headers, parse_text
from fsm_provider.operators.base import FsmOptionsOperator, OptionParsers, is_known

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.writes.ledger import Row, Write
    from fsm_provider.writes.runner import Find, Runner, Send


STOPPED = "the task was stopped"


class FsmWriteOperator(FsmOptionsOperator):
    """Base of the operators that write to the service, each write once.

    Before a write is sent, a row of a ledger says so; afterwards the row says what became of it. On Airflow
    3.3 and newer the ledger is in the task's state store. If the connection has ``state_conn_id``, it is in
    that SQL database; before Airflow 3.3 it has to be.

    :param once_per: what sends a write once: each ``run`` of the task; or each ``key``, whatever run, DAG or
        Airflow asks, which needs the database, and a key for each write (templated).
    :param if_uncertain: what to do if an earlier attempt has sent a write and nobody knows what became of it:
        ``fail``, or ``create`` it again once no earlier request can be on its way, at the risk of two
        (templated).
    :param headers: further headers of each request (templated).
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "once_per", "if_uncertain", "headers")
    option_parsers: ClassVar[OptionParsers] = {
        "once_per": partial(parse_choice, choices=("run", "key")),
        "if_uncertain": partial(parse_choice, choices=("fail", "create")),
        "headers": parse_headers,
    }
    _runner: Runner | None = None
    _is_stopped: bool = False

    def __init__(
        self,
        *,
        once_per: str = "run",
        if_uncertain: str = "fail",
        headers: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.once_per = once_per
        self.if_uncertain = if_uncertain
        self.headers = headers

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Check that each write has a key, if it is sent once for each.

        :param keys: by the name of the argument.
        :raises FsmInputError: naming each that is missing, or one that its template has not found.
        """
        if self.once_per == "key" and (missing := [name for name, key in keys.items() if key in (None, "")]):
            raise FsmInputError(f"{', '.join(missing)}: is missing; once_per='key' needs it")
        for name, key in keys.items():
            if key not in (None, "") and is_known(key):
                parse_text(name, key)

    def place_in_run(self, context: Context) -> str:
        """Return the key of a write that has none: its task, with the map index."""
        map_index = getattr(context.get("ti"), "map_index", None)
        return self.task_id if map_index in (None, -1) else f"{self.task_id}[{map_index}]"

    @contextmanager
    def runner(
        self,
        context: Context,
        send: Send,
        *,
        find: Find | None = None,
        concurrency: int = 1,
        once_per: str | None = None,
    ) -> Iterator[Runner]:
        """Open the ledger, for the block; give what sends writes through it.

        :param once_per: in place of the argument.
        """
        from fsm_provider.writes.ledger import lease_for
        from fsm_provider.writes.opening import open_ledger
        from fsm_provider.writes.runner import Rules, Runner

        options, by_key = self.options(), (once_per or self.once_per) == "key"
        ledger, task = open_ledger(context, self.hook, by_key=by_key)
        try:
            client = self.hook.client
            rules = Rules(
                fsm_conn_id=self.fsm_conn_id,
                by_key=by_key,
                lease=lease_for(client.settings.timeout),
                create_uncertain=options["if_uncertain"] == "create",
                token_header=client.settings.idempotency_header,
                token_hours=client.settings.idempotency_hours,
                retry_policy=client.retry_policy,
            )
            self._runner = Runner(
                ledger, task, send, rules, find, concurrency, client.reserve, client.count_retry
            )
            if self._is_stopped:  # while the ledger was opened
                self._runner.stop(STOPPED)
            yield self._runner
        finally:
            ledger.close()

    def write_once(
        self,
        context: Context,
        writes: Collection[Write],
        send: Send,
        *,
        find: Find | None = None,
        once_per: str | None = None,
        existing: Callable[[Row], Any],
    ) -> list[Any]:
        """Send writes in order; return the response to each, or what ``existing`` makes of an earlier one.

        :raises FsmError: why one of them is not known to have been made, once all have ended.
        """
        from fsm_provider.writes.outcomes import error_of, what_became
        from fsm_provider.writes.runner import PASSING

        with self.runner(context, send, find=find, once_per=once_per) as runner:
            runner.load(writes)
            try:
                runner.run()
            finally:
                for one in runner.pending.values():
                    self.hook.metrics.incr("writes", outcome=what_became(one))
            for one in runner.pending.values():
                if error := error_of(one, runner):
                    if isinstance(one.error, PASSING):  # then another attempt sends it again
                        raise one.error
                    raise error from error.__cause__
                if not one.is_created:
                    self.log.info("%s was sent before, by %s: nothing was sent now", one.row, one.row.by)
            return [
                one.response if one.is_created else existing(runner.row_of(one.write))
                for one in runner.pending.values()
            ]

    def on_kill(self) -> None:
        """Send nothing more; requests in flight are finished and recorded before the task ends."""
        self._is_stopped = True
        if self._runner:
            self._runner.stop(STOPPED)
