"""Check what the provider needs, part by part: ``python -m fsm_provider doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.commands.cli import parse_conn_id, quiet_airflow
from fsm_provider.user_errors import text_of

DESCRIPTION = """\
Check the connection, the service's clock, the ledger, the triggerer, and the receiver of webhooks if it is
used. Reads only, and needs Airflow's database, as the scheduler does. Exit code: 0 if all is well, 1 if
something is not."""


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider doctor"
) -> int:
    fsm_conn_id = parse_conn_id(arguments, prog, DESCRIPTION)
    verdicts = []
    for name, check in CHECKS.items():
        try:
            with quiet_airflow():
                verdict, text = "ok", check(fsm_conn_id)
        except Exception as error:
            verdict, text = "FAILED", text_of(error) or ""
            if not text:
                raise
        print(printable(f"{name:12}{verdict:8}{' '.join(text.split())}"), flush=True)
        verdicts.append(verdict)
    return int("FAILED" in verdicts)


def _hook(fsm_conn_id: str) -> Any:
    from fsm_provider.hooks.connection import hook_on, read_connection_outside_of_tasks

    return hook_on(read_connection_outside_of_tasks(fsm_conn_id))


def _connection(fsm_conn_id: str) -> str:
    is_well, text = _hook(fsm_conn_id).test_connection()
    if not is_well:
        raise FsmRefusedError(text)
    return str(text)


def _clock(fsm_conn_id: str) -> str:
    from fsm_provider.commands.probe import Probe

    found = Probe(_hook(fsm_conn_id).settings).timezone()
    if not found.settings:
        raise FsmRefusedError(found.evidence)
    return f"server_timezone is {found.settings['server_timezone']}: {found.evidence}"


def _ledger(fsm_conn_id: str) -> str:
    from fsm_provider.writes.admin import UNCERTAIN, open_ledgers

    with open_ledgers(fsm_conn_id) as ledgers:
        states = [row.state for _, row in ledgers.entries()]
    return f"{len(states)} sent, of which {sum(state in UNCERTAIN for state in states)} uncertain"


def _triggerer(_: str) -> str:
    from airflow.jobs.job import most_recent_job

    job = most_recent_job("TriggererJob")
    if job is None or not job.is_alive():
        raise FsmRefusedError(
            "none is running: deferrable sensors and completed_forms wait until one does"
        )
    return f"its last heartbeat was at {job.latest_heartbeat:%F %T} UTC"


def _receiver(_: str) -> str:
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    from fsm_provider.plugins.webhooks.config import Configuration
    from fsm_provider.plugins.webhooks.events import deliveries
    from fsm_provider.plugins.webhooks.settings import CONFIGURATION, ReceiverSettings
    from fsm_provider.state.variables import read_variable_in_server

    text = read_variable_in_server(CONFIGURATION)
    if text is None:
        return f"not used: there is no Variable {CONFIGURATION}"
    if not AIRFLOW_V_3_0_PLUS:
        raise FsmRefusedError("the receiver needs Airflow 3.0 or newer")
    ReceiverSettings.parse(text)
    routes = Configuration().read()
    for route, config in routes.items():
        if not config.tokens or not (config.secrets or config.endpoint.signature == "none"):
            raise FsmRefusedError(
                f"{route} has no path token or signing secret: register its webhook"
            )
        used = [
            one for one, accepted, _ in deliveries(route.partition("/")[0]) if accepted is not None
        ]
        if route not in used:
            problem = "until one does, deliveries get HTTP 503"
            raise FsmRefusedError(f"no DAG uses the asset fsm://{route}: {problem}")
    return f"accepts deliveries for {', '.join(routes) or 'nothing'}"


CHECKS = {
    check.__name__[1:]: check for check in (_connection, _clock, _ledger, _triggerer, _receiver)
}
