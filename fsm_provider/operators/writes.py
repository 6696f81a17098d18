"""Base class of the operators that write to the service, each write once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_choice, parse_key
from fsm_provider.links import FsmUncertainLink
from fsm_provider.operators.base import FsmBaseOperator, OptionParsers, is_literal

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.state.task import Task
    from fsm_provider.writes.attempt import WriteAttempt
    from fsm_provider.writes.runner import Runner, Sender

STOPPED = "the task was stopped"


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
    _runner: Runner | None = None
    _is_stopped = False

    def __init__(self, *, once_per: str = "run", if_uncertain: str = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.once_per = once_per
        self.if_uncertain = if_uncertain

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Check the keys that are given, and that none is missing where each write needs one.

        :param keys: by argument.
        """
        given = {name: key for name, key in keys.items() if key not in (None, "")}
        if self.once_per == "key" and len(given) < len(keys):
            missing = ", ".join(name for name in keys if name not in given)
            raise FsmInputError(f"{missing}: is missing; once_per='key' needs it")
        for name, key in given.items():
            if is_literal(key):
                parse_key(name, key)

    def sender(self) -> Sender:
        """Return what sends the requests of the writes: the client, as a rule."""
        return self.hook.client

    def existing_result(self, write: WriteAttempt) -> Any:
        """Return what is known of a write that an earlier attempt or another task has sent."""
        result = {**(write.entry.result or {}), **write.entry.subject}
        return result or None

    @contextmanager
    def runner(
        self, context: Context, task: Task, writes: Collection[WriteAttempt], concurrency: int = 1
    ) -> Iterator[Runner]:
        """Open the ledger, for the block, and load writes; give what sends them."""
        from fsm_provider.writes.opening import open_ledger
        from fsm_provider.writes.runner import Runner

        by_key = self.once_per == "key"
        with open_ledger(context, self.hook, task, by_key=by_key) as ledger:
            self._runner = Runner(
                ledger,
                task,
                self.hook,
                self.sender(),
                concurrency,
                create_uncertain=self.if_uncertain == "create",
            )
            if self._is_stopped:  # while the ledger was opened
                self._runner.stop(STOPPED)
            self._runner.load(writes)
            yield self._runner

    def write_once(
        self, context: Context, task: Task, writes: Collection[WriteAttempt]
    ) -> list[Any]:
        """Send writes in order; return the result of each, once all have ended.

        :raises FsmError: that of the first write that is not known to have been made.
        """
        from fsm_provider.writes.ledger import describe_result

        self.options()  # raises if one that was a template is not valid
        with self.runner(context, task, writes) as runner:
            runner.run()
        results = []
        for write in writes:
            error = runner.error_of(write)
            if error is not None:
                raise error from error.__cause__
            if write.is_created:
                results.append(write.response)
                continue
            result = describe_result(write.entry, self.hook.settings.web_url)
            message = "%s (%s) was sent before, by %s: nothing was sent now"
            self.log.info(message, write.entry, result, write.entry.sent_by)
            results.append(self.existing_result(write))
        return results

    def on_kill(self) -> None:
        """Send nothing more; requests in flight are finished and recorded before the task ends."""
        self._is_stopped = True
        if self._runner is not None:
            self._runner.stop(STOPPED)
