"""The commands ``python -m fsm_provider`` and ``airflow fsm``, each imported when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from fsm_provider.terminal import exit_code_of


class Command(NamedTuple):
    """A command.

    :param module: has ``main(arguments, prog)``, which returns the exit code.
    :param help: one line.
    """

    module: str
    help: str


COMMANDS = {
    "fake": Command("fsm_provider.testing.__main__", "serve a fake of the service, for tests and trials"),
    "ledger": Command("fsm_provider.writes.command", "show what was sent once, and settle it"),
    "probe": Command("fsm_provider.probe", "find the settings that a service needs"),
    "watermark": Command(
        "fsm_provider.polling.watermark_command", "show up to where forms were handled, and move that back"
    ),
}
HELP = "Commands of the field-service management provider"
COMMAND_LIST = "commands:\n" + "\n".join(f"  {name:11}{one.help}" for name, one in COMMANDS.items())
EXAMPLES = """\
examples:
  %(prog)s probe fsm_default
  %(prog)s fake --form-after 20
  %(prog)s ledger list --uncertain
  %(prog)s watermark show"""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider") -> int:
    """Run a command; return its exit code, as described in its ``--help``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [-h] COMMAND ...",
        description=f"{HELP}.\n\n{COMMAND_LIST}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    arguments = sys.argv[1:] if arguments is None else arguments
    command: str = parser.parse_args(arguments[:1]).command
    run = import_module(COMMANDS[command].module).main
    return exit_code_of(partial(run, arguments[1:], f"{prog} {command}"))


def airflow_commands() -> list[Any]:
    """Return the command ``airflow fsm``, which Airflow loads since 3.2."""
    from airflow.cli.cli_config import ActionCommand, Arg

    return [
        ActionCommand(
            name="fsm",
            help=HELP,
            func=_run_for_airflow,
            args=(Arg(("arguments",), nargs=argparse.REMAINDER, metavar="COMMAND ...", help="see above"),),
            description=f"{HELP}.\n\n{COMMAND_LIST}",
            epilog=EXAMPLES,
        )
    ]


def _run_for_airflow(given: argparse.Namespace) -> None:
    sys.exit(main(given.arguments, "airflow fsm"))
