"""Base classes of the operators that write to the service, each write once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_choice, parse_headers, parse_text
from fsm_provider.operators.base import FsmOptionsOperator, OptionParsers, is_known

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.ledger import Ledger
    from fsm_provider.writes.write import Write


def once_options(again: str) -> OptionParsers:
    """Return the parsers of the options of :class:`FsmWriteOnceOperator`.

    :param again: what the options call to send a write again.
    """
    return {
        "once_per": partial(parse_choice, choices=("run", "key")),
        "if_uncertain": partial(parse_choice, choices=("fail", again)),
        "if_already_done": partial(parse_choice, choices=("reuse", again)),
        "headers": parse_headers,
    }


class FsmWriteOnceOperator(FsmOptionsOperator):
    """Base of operators that send writes to the service, each once.

    The ledger is in Airflow, for each task instance of each run; or, if the connection has ``state_conn_id``,
    in a SQL database, which mapped tasks of a run share.

    :param once_per: what sends a write once: each ``run`` of the task; or each ``key``, whatever run, DAG or
        Airflow asks, which needs the database, and a key for each write (templated).
    :param if_uncertain: what to do if a write was sent without learning the outcome.
    :param if_already_done: what to do if a write was done before the task was cleared.
    :param headers: further headers of each request.
    """

    def __init__(
        self,
        *,
        once_per: str = "run",
        if_uncertain: str = "fail",
        if_already_done: str = "reuse",
        headers: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.once_per = once_per
        self.if_uncertain = if_uncertain
        self.if_already_done = if_already_done
        self.headers = headers

    def options(self, *, only_known: bool = False) -> dict[str, Any]:
        """Parse the options; see :meth:`FsmOptionsOperator.options`."""
        options = super().options(only_known=only_known)
        if options.get("once_per") == "key" and options.get("if_already_done", "reuse") != "reuse":
            raise FsmInputError(
                "if_already_done: should be 'reuse' with once_per='key', where nothing is sent again"
            )
        return options

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Check that each write has a key, if it is sent once for each.

        :param keys: by the name of the argument.
        :raises FsmInputError: naming each that is missing, or one that its template has not found.
        """
        if self.once_per != "key":
            return
        if missing := [name for name, key in keys.items() if key in (None, "")]:
            raise FsmInputError(f"{', '.join(missing)}: is missing; once_per='key' needs it")
        for name, key in keys.items():
            if is_known(key):
                parse_text(name, key)

    def ledger(self, context: Context) -> Ledger:
        """Open the task's ledger."""
        from fsm_provider.writes.ledgers import open_ledger

        options = self.options()
        return open_ledger(
            context,
            self.hook,
            once_per=options["once_per"],
            repeat_uncertain=options["if_uncertain"] != "fail",
            repeat_done=options["if_already_done"] != "reuse",
        )


class FsmOneWriteOperator(FsmWriteOnceOperator):
    """Base of operators that send one write, with the arguments of its base."""

    @cached_property
    def _stopping(self) -> Event:
        return Event()

    def write_once(
        self,
        ledger: Ledger,
        write: Write,
        send: Callable[[FsmHook, Mapping[str, str]], Any],
        keep: Callable[[Any], Any] = lambda result: result,
        find: Callable[[FsmHook], Any] | None = None,
    ) -> Any:
        """Return the result of a write; send it unless the ledger knows its result.

        The connection is read before the intent is stored. See :meth:`Ledger.run_once`.

        :param send: called with the hook and further headers.
        """
        from fsm_provider.metrics import counted_write

        hook = self.hook
        hook.sleep = partial(ledger.wait, stopping=self._stopping)
        ledger.load([write])
        ledger.expect([write])
        with counted_write(hook.metrics) as created:
            return ledger.run_once(
                write,
                lambda: created(send(hook, ledger.headers())),
                prepare=lambda: hook.client,
                keep=keep,
                find=partial(find, hook) if find else None,
                stopping=self._stopping,
            )

    def on_kill(self) -> None:
        """End a wait before a request; a request in flight is finished and recorded."""
        # Airflow calls this in a signal handler of the waiting thread, which may hold the event's lock.
        Thread(target=self._stopping.set).start()
