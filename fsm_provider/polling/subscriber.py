"""What a feed asks of those whom it polls for: deferred sensors, and watchers of assets."""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from fsm_provider.api.errors import FsmError
from fsm_provider.polling.polls import FormVersion, Query, RoutingKey, Time


class Subscriber(Protocol):
    """A sensor or a watcher, as a :class:`~.feed.Feed` sees it.

    The feed calls these methods, in its event loop; none of them waits for anything.
    """

    is_wait: ClassVar[bool]
    """Whether it is a deferred sensor, which the metrics of waits count."""

    def routing_keys(self) -> list[RoutingKey]:
        """Return the keys of the forms that it is to be given; they never change."""

    def begin_catch_up(self) -> list[Query]:
        """Return the queries of a catch-up that begins now, from its own bound.

        The next ``on_catch_up`` is of these.
        """

    def check_after(self, now: Time) -> float:
        """Return the seconds until it wants the next catch-up.

        :param now: the feed's time.
        """

    def ingest(self, forms: Iterable[FormVersion]) -> None:
        """Take forms of one of its routing keys, of any listing; it need not want them all."""

    def on_poll(self, since: Time, started: Time) -> None:
        """Note that it has been given all that was updated since a time until ``started``."""

    def on_catch_up(self, started: Time) -> None:
        """Note that it has been given all that the catch-up asked for, as of ``started``."""

    def on_failure(self, error: FsmError, since: float) -> None:
        """Note that listings fail for it.

        :param since: when the first failed after the last success, by the event loop.
        """

    def on_service_changed(self) -> None:
        """Note that the connection leads to another service: it is to leave the feed."""
