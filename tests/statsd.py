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
            if match := METRIC.fullmatch(line):
                tags = frozenset(
                    tuple(tag.split("=", 1)) for tag in match["tags"].split(",") if tag
                )
                self.received.append((match["name"], tags, match["kind"], float(match["value"])))

    def values(self, name: str, **tags: str) -> list[float]:
        """All values of a metric whose tags include these."""
        wanted = set(tags.items())
        return [
            value for known, has, _, value in list(self.received) if known == name and wanted <= has
        ]

    def count(self, name: str, **tags: str) -> float:
        return sum(self.values(name, **tags))


@contextmanager
def statsd() -> Iterator[Metrics]:
    """Run a server on a free port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        prefix = "AIRFLOW__METRICS__STATSD"
        metrics = Metrics(
            {
                f"{prefix}_ON": "True",
                f"{prefix}_HOST": "127.0.0.1",
                f"{prefix}_PORT": str(server.getsockname()[1]),
                f"{prefix}_INFLUXDB_ENABLED": "True",
            }
        )

        def receive() -> None:
            while datagram := server.recv(LARGEST):
                metrics.add(datagram)

        thread = Thread(target=receive, daemon=True)
        thread.start()
        yield metrics
        server.sendto(b"", server.getsockname())
        thread.join()
