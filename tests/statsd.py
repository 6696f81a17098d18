"""A StatsD server that keeps what Airflow's metrics send."""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

METRIC = re.compile(
    r"airflow\.(?P<name>[^,:]+)(?P<tags>(?:,[^=]+=[^,:]*)*):(?P<value>[^|]+)\|(?P<kind>\w+)"
)
LARGEST = 65_536

Tags = frozenset[tuple[str, str]]


@dataclass
class Metrics:
    """What was received: the sums of counters, all values of gauges and timings.

    :param env: makes Airflow send here, with tags.
    """

    env: Mapping[str, str]
    received: list[tuple[str, Tags, str, float]] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)

    def add(self, datagram: bytes) -> None:
        self.raw += datagram + b"\n"
        for line in datagram.decode().splitlines():
            metric = METRIC.fullmatch(line)
            if metric is None:
                continue
            tags = _tags(metric["tags"])
            value = float(metric["value"])
            self.received.append((metric["name"], tags, metric["kind"], value))

    def values(self, name: str, **tags: str) -> list[float]:
        """All values of a metric whose tags include these."""
        wanted = set(tags.items())
        values: list[float] = []
        # A copy: the server's thread adds to it.
        for received_name, received_tags, _, value in list(self.received):
            is_wanted = received_name == name and wanted <= received_tags
            if is_wanted:
                values.append(value)
        return values

    def count(self, name: str, **tags: str) -> float:
        return sum(self.values(name, **tags))


def _tags(text: str) -> Tags:
    """Parse the tags of a metric: ``,name=value`` for each."""
    tags: set[tuple[str, str]] = set()
    for tag in filter(None, text.split(",")):
        name, value = tag.split("=", 1)
        tags.add((name, value))
    return frozenset(tags)


@contextmanager
def statsd() -> Iterator[Metrics]:
    """Run a server on a free port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()
        prefix = "AIRFLOW__METRICS__STATSD"
        metrics = Metrics(
            {
                f"{prefix}_ON": "True",
                f"{prefix}_HOST": "127.0.0.1",
                f"{prefix}_PORT": str(address[1]),
                f"{prefix}_INFLUXDB_ENABLED": "True",
            }
        )

        def receive() -> None:
            while datagram := server.recv(LARGEST):
                metrics.add(datagram)

        thread = Thread(target=receive, daemon=True)
        thread.start()
        yield metrics
        server.sendto(b"", address)
        thread.join()
