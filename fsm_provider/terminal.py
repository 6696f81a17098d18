"""What commands share: the command line, what they print, and how they refuse."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from textwrap import fill

EXIT_CODE = """
exit code: 0; 1 if nothing was found or the request was refused, and nothing was changed; 2 if the
command line is wrong, a connection or a database cannot be used, or the output cannot be written; 130 after
Ctrl-C."""


class RefusedError(Exception):
    """What is asked for is refused; nothing was changed."""


class SubcommandParser(argparse.ArgumentParser):
    """Parses the command line of a command with subcommands.

    :param prog: what is typed to run it.
    :param description: what the command does.
    :param examples: arguments of each subcommand, by its name.
    :param conn_id: whether it has ``--conn-id``, before and after them.
    """

    def __init__(
        self, prog: str, description: str, examples: Mapping[str, Sequence[str]], *, conn_id: bool = True
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=_epilog(f"{name} {one}" for name, some in examples.items() for one in some),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._common = argparse.ArgumentParser(add_help=False)
        if conn_id:
            about = "the connection of type fsm; default: fsm_default"
            self.add_argument("--conn-id", default="fsm_default", metavar="ID", help=about)
            self._common.add_argument("--conn-id", default=argparse.SUPPRESS, metavar="ID", help=about)
        self._examples = examples
        self._subcommands = self.add_subparsers(
            dest="command", required=True, metavar="SUBCOMMAND", parser_class=argparse.ArgumentParser
        )

    def subcommand(self, name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a subcommand.

        :param text: what it does, without a capital letter and a full stop.
        :param parents: parsers whose arguments it has too.
        """
        return self._subcommands.add_parser(
            name,
            help=text,
            description=fill(f"{text[0].upper()}{text[1:]}.", width=100),
            epilog=_epilog(self._examples[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[self._common, *parents],
        )


def _epilog(examples: Iterable[str]) -> str:
    return "\n".join(["examples:", *(f"  %(prog)s {one}".rstrip() for one in examples), EXIT_CODE])


def exit_code_of(run: Callable[[], int]) -> int:
    """Run a command; return its exit code: 1 if its output is wanted no more, 130 after Ctrl-C."""
    try:
        code = run()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else fail(2, str(error))
    except KeyboardInterrupt:
        return fail(130, "Interrupted")
    return code


@contextmanager
def quiet_airflow() -> Iterator[None]:
    """Keep Airflow's log out of the standard output, and its warnings and deprecations out of sight."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns."""
    from fsm_provider.api.redaction import printable

    for line in aligned([[printable(cell) for cell in row] for row in (head, *rows)]):
        print(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def fail(code: int, message: str) -> int:
    """Print a message on the standard error; return the exit code."""
    from fsm_provider.api.redaction import printable

    print(printable(" ".join(message.split())), file=sys.stderr)
    return code
