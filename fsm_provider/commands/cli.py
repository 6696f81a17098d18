"""The commands ``python -m fsm_provider`` and ``airflow fsm``, and what they share."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from textwrap import fill
from typing import Any

from fsm_provider import __version__

COMMANDS = {
    "doctor": (
        "fsm_provider.commands.doctor",
        "check what the provider needs, part by part",
    ),
    "fake": ("fsm_provider.testing.__main__", "serve a fake of the service, for tests and trials"),
    "ledger": ("fsm_provider.commands.ledger", "show the writes that were sent, and settle them"),
    "probe": ("fsm_provider.commands.probe", "find the settings that a service needs"),
    "watermark": (
        "fsm_provider.commands.watermark",
        "show how far forms were handled, and go back",
    ),
}
"""The module and a line of help of each command; ``main(arguments, prog)`` returns the exit code.

A module is imported when its command runs.
"""
HELP = "Commands of the field-service management provider"
DESCRIPTION = "\n".join(
    [f"{HELP}.", "", "commands:", *(f"  {name:11}{text}" for name, (_, text) in COMMANDS.items())]
)
EXAMPLES = """\
examples:
  %(prog)s doctor
  %(prog)s probe fsm_default
  %(prog)s fake --form-after 20
  %(prog)s ledger list --uncertain
  %(prog)s watermark show"""
EXIT_CODE = """
exit code: 0; 1 if nothing was found or the request was refused, and nothing was changed; 2 if the
command line is wrong, a connection or a database cannot be used, or the output cannot be written;
130 after Ctrl-C."""
_RAW = argparse.RawDescriptionHelpFormatter


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider") -> int:
    """Run a command; return its exit code, as described in its ``--help``."""
    usage = "%(prog)s [-h] COMMAND ..."
    version = f"airflow-provider-fsm {__version__}"
    parser = argparse.ArgumentParser(prog, usage, DESCRIPTION, EXAMPLES, formatter_class=_RAW)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=version)
    if arguments is None:
        arguments = sys.argv[1:]
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has not all letters
    command = parser.parse_args(arguments[:1]).command
    try:
        run = import_module(COMMANDS[command][0]).main
    except ModuleNotFoundError as missing:
        return fail(2, f"{missing}; install it with: pip install 'airflow-provider-fsm[testing]'")
    return exit_code_of(partial(run, arguments[1:], f"{prog} {command}"))


def exit_code_of(run: Callable[[], int]) -> int:
    """Run a command; return its exit code, as in ``EXIT_CODE``. If it fails, a line says why."""
    from fsm_provider.api.errors import FsmNoLedgerError, FsmRefusedError

    try:
        exit_code = run()
        sys.stdout.flush()
    except OSError as error:
        # Python writes what is left in the buffer when it ends: into nothing, not to fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else fail(2, str(error))
    except KeyboardInterrupt:
        return fail(130, "Interrupted")
    except (FsmNoLedgerError, FsmRefusedError) as error:
        return fail(1, str(error))
    except Exception as error:
        from fsm_provider.user_errors import text_of

        text = text_of(error)
        if text is None:
            raise
        return fail(2, text)
    return exit_code


def airflow_commands() -> list[Any]:
    """Return the command ``airflow fsm``, which Airflow loads since 3.2."""
    from airflow.cli.cli_config import ActionCommand, Arg

    def run_main(options: argparse.Namespace) -> None:
        sys.exit(main(options.arguments, "airflow fsm"))

    arguments = Arg(
        ("arguments",), nargs=argparse.REMAINDER, metavar="COMMAND ...", help="see above"
    )
    return [ActionCommand("fsm", HELP, run_main, (arguments,), DESCRIPTION, EXAMPLES)]


ALL_HELP = (
    "all connections of type fsm in Airflow's database and environment, and those that assets name"
)


def all_conn_ids() -> list[str]:
    """Return the connections of ``--all``: also those that only an asset names.

    :raises FsmRefusedError: if there is none.
    """
    from fsm_provider.api.errors import FsmRefusedError

    with quiet_airflow():
        from fsm_provider.hooks.connection import fsm_conn_ids
        from fsm_provider.polling.admin import conn_ids_of_assets

        conn_ids = sorted({*fsm_conn_ids(), *conn_ids_of_assets()})
    if not conn_ids:
        raise FsmRefusedError(
            "there is no connection of type fsm in Airflow's database and environment"
        )
    return conn_ids


def conn_id_parser(
    prog: str, description: str, *, takes_all: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of a command about one connection, ``fsm_conn_id``.

    :param takes_all: whether it takes ``--all`` in place of one connection.
    """
    examples = "examples:\n  %(prog)s\n  %(prog)s fsm_staging"
    parser = argparse.ArgumentParser(prog, None, description, examples, formatter_class=_RAW)
    text = "the connection; default: fsm_default"
    # The option's default is that of both.
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("fsm_conn_id", nargs="?", default=argparse.SUPPRESS, help=text)
    one_of.add_argument(
        "--conn-id", dest="fsm_conn_id", default="fsm_default", metavar="ID", help="the same"
    )
    if takes_all:
        one_of.add_argument("--all", action="store_true", help=ALL_HELP)
    return parser


class SubcommandParser(argparse.ArgumentParser):
    """Parses the command line of a command with subcommands.

    :param examples: arguments of each subcommand, by its name.
    :param conn_id: whether it has ``--conn-id``, before and after them.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Mapping[str, Sequence[str]],
        *,
        conn_id: bool = True,
    ) -> None:
        lines = []
        for name, arguments in examples.items():
            lines += [f"{name} {line}" for line in arguments]
        super().__init__(prog, None, description, _epilog(lines), formatter_class=_RAW)
        self._common = argparse.ArgumentParser(add_help=False)
        if conn_id:
            text = "the connection of type fsm; default: fsm_default"
            self.add_argument("--conn-id", default="fsm_default", metavar="ID", help=text)
            # A default here would replace what stands before the subcommand.
            self._common.add_argument(
                "--conn-id", default=argparse.SUPPRESS, metavar="ID", help=text
            )
        self._examples = examples
        self._subcommands = self.add_subparsers(
            dest="command",
            required=True,
            metavar="SUBCOMMAND",
            parser_class=argparse.ArgumentParser,
        )

    def subcommand(
        self, name: str, text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        """Add a subcommand with the arguments of ``parents``; its text begins in lower case."""
        return self._subcommands.add_parser(
            name,
            help=text,
            description=fill(f"{text[0].upper()}{text[1:]}.", width=100),
            epilog=_epilog(self._examples[name]),
            formatter_class=_RAW,
            parents=[self._common, *parents],
        )


def _epilog(examples: Iterable[str]) -> str:
    lines = [f"  %(prog)s {arguments}".rstrip() for arguments in examples]
    return "\n".join(["examples:", *lines, EXIT_CODE])


@contextmanager
def quiet_airflow() -> Iterator[None]:
    """Keep Airflow's log out of the standard output, and its warnings out of sight."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from airflow.providers.common.compat.sdk import AirflowException  # noqa: F401

            warnings.simplefilter("ignore")  # again, as Airflow's import sets filters of its own
            yield
    finally:
        logging.disable(disabled)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns, each as wide as its widest cell."""
    from fsm_provider.api.redaction import printable

    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def fail(code: int, message: str) -> int:
    """Print a message on the standard error; return the exit code."""
    from fsm_provider.api.redaction import printable

    print(printable(" ".join(message.split())), file=sys.stderr)
    return code
