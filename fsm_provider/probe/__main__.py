"""Find the settings that a service needs: ``python -m fsm_provider probe``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fsm_provider.api.errors import FsmConnectionError, FsmError
from fsm_provider.api.redaction import printable
from fsm_provider.probe.checks import MAX_REQUESTS, Finding, Probe
from fsm_provider.terminal import exit_code_of, fail

DESCRIPTION = f"""\
Find out which cursor parameter, page size, time zone and time format the service behind a connection
expects, and print the extra that the connection should have. Reads only: at most {MAX_REQUESTS} GET requests,
plus one for each that does not arrive or returns HTTP 429. Exit code: 0 if everything was determined and is
right, 1 if something was not or is not, 2 if no request was possible."""
EXAMPLES = """\
examples:
  %(prog)s
  %(prog)s fsm_staging"""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider.probe") -> int:
    """Print each finding as it is made; return the exit code described in ``--help``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "fsm_conn_id", nargs="?", default="fsm_default", help="the connection; default: %(default)s"
    )
    fsm_conn_id = parser.parse_args(arguments).fsm_conn_id

    from airflow.providers.common.compat.sdk import AirflowException

    from fsm_provider.compat import read_connection_outside_of_tasks
    from fsm_provider.hooks.fsm import assumption_about, settings_from

    try:
        connection = read_connection_outside_of_tasks(fsm_conn_id)
        settings = settings_from(connection)
        probe = Probe(settings)
        print(f"Asking {settings.base_url}, reading only, at most {MAX_REQUESTS} times.\n")
        findings = []
        for finding in probe.findings():
            findings.append(finding)
            if finding.outcome != "unknown":
                print(printable(_line(finding)))
    except FsmConnectionError as error:
        return fail(2, f"{error}{assumption_about(connection)}")
    except (AirflowException, FsmError) as error:
        return fail(2, str(error))
    print(f"\n{probe.requests} requests were made. The connection's extra:")
    found = {name: value for finding in findings for name, value in finding.settings.items()}
    print(json.dumps({**connection.extra_dejson, **found}, indent=2))
    unknown = [finding for finding in findings if finding.outcome == "unknown"]
    if unknown:
        print("\nCould not be determined:")
    for finding in unknown:
        print(printable(f"- {finding.name}, because {finding.evidence}."))
    return 0 if all(finding.outcome == "confirmed" for finding in findings) else 1


def _line(finding: Finding) -> str:
    values = ", ".join(f"{name} is {value}" for name, value in finding.settings.items())
    verdict = f"{finding.name} is {'honoured' if finding.outcome == 'confirmed' else 'not honoured'}"
    return f"{values or verdict}: {finding.evidence}"


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
