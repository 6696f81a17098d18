"""Serve the fake for a demonstration: ``python -m fsm_provider.testing``."""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
import threading
from typing import get_args

from fsm_provider.testing import Engineer, FakeFieldService
from fsm_provider.testing.settings import Dialect


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fsm_provider.testing",
        description="Serve a fake of the field-service API on 127.0.0.1 until interrupted.",
    )
    parser.add_argument("--port", type=int, default=8400, help="0: any free port (default: %(default)s)")
    parser.add_argument("--token", default="fake-token", help="accepted bearer token (default: %(default)s)")
    parser.add_argument(
        "--dialect",
        choices=get_args(Dialect),
        default="specified",
        help="types of the pagination fields (default: %(default)s, which differs by listing)",
    )
    parser.add_argument(
        "--cursor-param", default="cursor", help="query parameter of a cursor (default: %(default)s)"
    )
    parser.add_argument("--page-size", type=int, default=100, help="records per page (default: %(default)s)")
    parser.add_argument(
        "--form-after",
        type=float,
        metavar="SECONDS",
        help="complete forms against each job this long after its creation",
    )
    parser.add_argument(
        "--form-name",
        action="append",
        metavar="NAME",
        help="form to complete, may be repeated (default: Gas Safety Record)",
    )
    arguments = parser.parse_args()
    if arguments.form_name and arguments.form_after is None:
        parser.error("--form-name needs --form-after")
    return arguments


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    arguments = parse_arguments()
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("fsm_provider.testing").setLevel(logging.INFO)
    engineer = None
    if arguments.form_after is not None:
        names = arguments.form_name or Engineer.form_names
        engineer = Engineer(after=arguments.form_after, form_names=tuple(names))
    interrupted = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: interrupted.set())
    with FakeFieldService(
        port=arguments.port,
        token=arguments.token,
        dialect=arguments.dialect,
        cursor_param=arguments.cursor_param,
        page_size=arguments.page_size,
        engineer=engineer,
    ) as service:
        print(f"Fake field service at {service.base_url}, token {service.settings.token}")
        print(f"export AIRFLOW_CONN_FSM_DEFAULT={shlex.quote(service.connection_json())}", flush=True)
        interrupted.wait()


if __name__ == "__main__":
    main()
