"""The command line of ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from textwrap import fill
from typing import Any

DESCRIPTION = """\
Show up to where completed forms were handled, and have some handled again: for the assets of completed_forms,
and for DAGs that keep a watermark with fsm_provider.watermark, in a Variable or in the database of the
connection's state_conn_id."""
EXAMPLES = {
    "show": ("", "--variable my_dag"),
    "rewind": (
        "gas_safety --to 2026-01-05T08:00:00Z --dry-run",
        "--variable my_dag --to 2026-01-05T08:00:00Z",
    ),
    "replay": ("gas_safety --from 2026-01-05T08:00:00Z --to 2026-01-05T12:00:00Z --dry-run",),
}
EXIT_CODE = """
exit code: 0; 1 if nothing was found or the request was refused, and nothing was changed; 2 if a connection
or a database cannot be used."""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        epilog=_epilog(f"{name} {one}".rstrip() for name, examples in EXAMPLES.items() for one in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    conn_id: dict[str, Any] = {"metavar": "ID", "help": "the connection of type fsm; default: fsm_default"}
    parser.add_argument("--conn-id", default="fsm_default", **conn_id)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--conn-id", default=argparse.SUPPRESS, **conn_id)
    where = argparse.ArgumentParser(add_help=False)
    one_of = where.add_mutually_exclusive_group()
    for name, text in (("asset", "an asset"), ("variable", "a Variable"), ("database", "in the database")):
        one_of.add_argument(
            f"--{name}", dest="where", action="store_const", const=name, help=f"NAME is {text}"
        )
    change = argparse.ArgumentParser(add_help=False)
    change.add_argument("name", metavar="NAME")
    change.add_argument(
        "--dry-run", action="store_true", help="change nothing; list the forms, and print the first 20"
    )
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="SUBCOMMAND")

    def subcommand(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return subcommands.add_parser(
            name,
            help=text,
            description=fill(f"{text[0].upper()}{text[1:]}.", width=100),
            epilog=_epilog(EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common, *parents],
        )

    one = subcommand("show", "show the watermarks of assets and of the connection's database", where)
    one.add_argument("name", metavar="NAME", nargs="?", help="only this one; a Variable is shown by its name")

    one = subcommand(
        "rewind", "set a watermark back, so that the forms since then are handled again", where, change
    )
    one.add_argument("--to", metavar="TIME", required=True, help="ISO 8601; UTC if it has no zone")
    one.add_argument(
        "--force",
        action="store_true",
        help="also set it forward, which skips forms; not that of an asset",
    )

    one = subcommand("replay", "emit the forms of an asset again that were updated in a period", change)
    one.add_argument("--from", dest="since", metavar="TIME", required=True, help="updated at or after it")
    one.add_argument("--to", metavar="TIME", required=True, help="and before it")
    return parser


def _epilog(examples: Iterable[str]) -> str:
    return "\n".join(["examples:", *(f"  %(prog)s {one}".rstrip() for one in examples), EXIT_CODE])
