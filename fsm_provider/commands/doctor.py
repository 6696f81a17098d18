"""Check what the provider needs, part by part: ``python -m fsm_provider doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fsm_provider.api.errors import FsmNoLedgerError, FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.commands.cli import all_conn_ids, conn_id_parser, quiet_airflow
from fsm_provider.user_errors import text_of

if TYPE_CHECKING:
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.polling.asset_status import AssetStatus

DESCRIPTION = """\
Check the connection, the service's clock, the ledger, whether Airflow's scheduler, DAG processor
and triggerer run, the assets of completed forms, and the receiver of webhooks if it is used. Reads
only. Needs Airflow's database. Exit code: 0 if all is well, 1 if something is not."""


def main(arguments: Sequence[str], prog: str) -> int:
    options = conn_id_parser(prog, DESCRIPTION, takes_all=True).parse_args(arguments)
    if not options.all:
        return _check(options.fsm_conn_id)
    exit_code = 0
    for conn_id in all_conn_ids():
        print(printable(f"{conn_id}:"))
        exit_code |= _check(conn_id)
    return exit_code


def _check(fsm_conn_id: str) -> int:
    """Print what each check of a connection returns or raises; return 1 if one raises, else 0."""
    exit_code = 0
    for name, check in CHECKS.items():
        verdict = "ok"
        try:
            with quiet_airflow():
                text = check(fsm_conn_id)
        except Exception as error:
            failure = text_of(error)
            if failure is None:
                raise
            verdict = "FAILED"
            text = failure
            exit_code = 1
        print(printable(f"{name:12}{verdict:8}{' '.join(text.split())}"), flush=True)
    return exit_code


def _hook(fsm_conn_id: str) -> FsmHook:
    """Return the hook of a connection.

    :raises FsmInputError: if it is of another type.
    """
    from fsm_provider.hooks.connection import (
        hook_on,
        read_connection_outside_of_tasks,
        settings_from,
    )

    connection = read_connection_outside_of_tasks(fsm_conn_id)
    settings_from(connection)  # refuses another type
    hook: FsmHook = hook_on(connection)
    return hook


def _check_connection(fsm_conn_id: str) -> str:
    is_well, text = _hook(fsm_conn_id).test_connection()
    if not is_well:
        raise FsmRefusedError(text)
    return text


def _check_clock(fsm_conn_id: str) -> str:
    from fsm_provider.commands.probe import Probe

    finding = Probe(_hook(fsm_conn_id).settings).find_timezone()
    if not finding.settings:
        raise FsmRefusedError(finding.evidence)
    return f"server_timezone is {finding.settings['server_timezone']}: {finding.evidence}"


def _check_ledger(fsm_conn_id: str) -> str:
    from fsm_provider.writes.admin import open_ledgers

    states = Counter[str]()
    try:
        with open_ledgers(fsm_conn_id) as ledgers:
            for tally, number in ledgers.counts().items():
                states[tally.state] += number
    except FsmNoLedgerError as error:
        return f"{error}: the first task that writes makes it"
    sent = states.total() - states["free"]
    return f"{sent} sent under its host and login, of which {states['uncertain']} uncertain"


def _check_running(job_type: str, without: str, _: str) -> str:
    """Check that a part of Airflow runs.

    :param without: what happens until one runs.
    """
    from fsm_provider.polling.admin import running_jobs

    jobs = running_jobs(job_type)
    if not jobs:
        raise FsmRefusedError(f"none is running: {without} until one runs")
    return f"its last heartbeat was at {jobs[0].latest_heartbeat:%F %T} UTC"


def _check_dag_processor(fsm_conn_id: str) -> str:
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    if not AIRFLOW_V_3_0_PLUS:
        return "not checked before Airflow 3.0"
    return _check_running("DagProcessorJob", "no change of a DAG file is read", fsm_conn_id)


def _check_assets(fsm_conn_id: str) -> str:
    from fsm_provider.polling.admin import watched_assets

    assets = watched_assets(fsm_conn_id=fsm_conn_id)
    lines = [f"{_named(asset)}: {problem}" for asset in assets for problem in asset.problems()]
    lines += sorted({str(text_of(asset.read_error)) for asset in assets if asset.read_error})
    if lines:
        raise FsmRefusedError("; ".join(lines))
    return f"{len(assets)} of completed forms"


def _named(asset: AssetStatus) -> str:
    dag_ids = ", ".join(sorted(asset.dag_ids)) or "none"
    return f"'{asset.name}' (DAGs: {dag_ids})"


def _check_receiver(_: str) -> str:
    """Check that deliveries on each route can be verified, and that a DAG uses its asset."""
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    from fsm_provider.plugins.webhooks.config import read_routes
    from fsm_provider.plugins.webhooks.settings import SETTINGS_VARIABLE, ReceiverSettings
    from fsm_provider.state.variables import read_stored_variable

    text = read_stored_variable(SETTINGS_VARIABLE)
    if text is None:
        return f"not used: there is no Variable {SETTINGS_VARIABLE}"
    if not AIRFLOW_V_3_0_PLUS:
        raise FsmRefusedError("the receiver needs Airflow 3.0 or newer")
    from fsm_provider.plugins.webhooks.events import count_deliveries

    ReceiverSettings.parse(text)  # raises; read_routes only logs what is wrong
    configs = read_routes()
    for route, config in configs.items():
        is_secret_missing = config.endpoint.signature != "none" and not config.signing_secrets
        if is_secret_missing or not config.path_tokens:
            raise FsmRefusedError(
                f"{route} has no path token or signing secret: register its webhook"
            )
        counts = count_deliveries(route.partition("/")[0])
        if route not in [count.route for count in counts if count.has_asset]:
            raise FsmRefusedError(
                f"no DAG uses the asset fsm://{route}: until one does, deliveries get HTTP 503"
            )
    return f"accepts deliveries for {', '.join(configs) or 'nothing'}"


# Those of Airflow as a whole take the connection, too, and ignore it.
CHECKS: dict[str, Callable[[str], str]] = {
    "connection": _check_connection,
    "clock": _check_clock,
    "ledger": _check_ledger,
    "scheduler": partial(_check_running, "SchedulerJob", "no DAG starts, and no task goes on"),
    "processor": _check_dag_processor,
    "triggerer": partial(
        _check_running, "TriggererJob", "deferrable sensors and completed_forms wait"
    ),
    "assets": _check_assets,
    "receiver": _check_receiver,
}
