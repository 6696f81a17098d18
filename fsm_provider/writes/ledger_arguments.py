"""The command line of ``python -m fsm_provider ledger``."""

from __future__ import annotations

import argparse
import re
from getpass import getuser
from typing import Any

from pydantic_core import from_json

from fsm_provider.terminal import SubcommandParser

DESCRIPTION = """\
Look at the ledger of a connection whose setting state_conn_id names a SQL database, and change it. Only what
was sent to the connection's base URL is shown and changed."""
MAX_DAYS = 36_500
EXAMPLES = {
    "list": ("--uncertain", "--dag planned --run monday --json", "--settled"),
    "settle": (
        'PM-7 --job-id 4711 --why "found in the service"',
        'PM-8 --not-created --why "not in the service, asked Jo"',
    ),
    "forget": ('PM-9 --why "cancelled, to be created again"',),
    "prune": ("--older-than 400 --dry-run",),
    "export": ("--format csv > ledger.csv",),
    "create-tables": ("--sql",),
}


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES)
    task = argparse.ArgumentParser(add_help=False)
    for name, text in (("dag", "DAG"), ("run", "run"), ("task", "task")):
        task.add_argument(f"--{name}", dest=f"{name}_id", metavar="ID", help=f"only of this {text}")
    task.add_argument(
        "--once-per", choices=("run", "key"), help="only what is sent once for each run, or for each key"
    )
    who = argparse.ArgumentParser(add_help=False)
    user = _user()
    who.add_argument(
        "--by",
        metavar="NAME",
        default=user,
        required=user is None,
        help="who you are; default: the user of this process",
    )
    why = argparse.ArgumentParser(add_help=False)
    why.add_argument("--why", type=_text, metavar="TEXT", required=True, help="kept in the history")

    one = parser.subcommand("list", "show entries, or what people have changed", task)
    one.add_argument("--key", type=_text, help="only of this key")
    which = one.add_mutually_exclusive_group()
    which.add_argument(
        "--uncertain",
        action="store_true",
        help="only what may exist or not: no response, or a conflict",
    )
    which.add_argument(
        "--settled", action="store_true", help="what was settled, forgotten and pruned, when, by whom and why"
    )
    one.add_argument("--json", action="store_true", help="as JSON, with all that is known")

    text = "record what became of a write whose outcome is uncertain, after a look into the service"
    one = parser.subcommand("settle", text, task, who, why)
    one.add_argument("key", type=_text, metavar="KEY")
    outcome = one.add_mutually_exclusive_group(required=True)
    outcome.add_argument("--job-id", type=_positive, metavar="N", help="the job exists: tasks return it")
    outcome.add_argument(
        "--not-created", action="store_true", help="nothing was written: the next attempt may send it"
    )
    outcome.add_argument(
        "--answer",
        type=_json,
        metavar="JSON",
        help="the response to the request of an FsmRequestOperator, which tasks then return",
    )
    one.add_argument(
        "--force",
        action="store_true",
        help="settle it though a task may be sending it now, or another key has the job",
    )

    text = "delete entries that are done, each by its key, so that they may be sent again"
    parser.subcommand("forget", text, task, who, why).add_argument(
        "key", type=_text, metavar="KEY", nargs="+"
    )

    text = (
        "delete entries that are done and were last written some days ago. A task that is cleared afterwards "
        "sends again what it sent. What is uncertain or a conflict stays, and so does what is sent once for "
        "each key"
    )
    one = parser.subcommand("prune", text, who)
    one.add_argument("--older-than", type=_days, metavar="DAYS", required=True, help="how old")
    one.add_argument(
        "--keys",
        action="store_true",
        help="also what is sent once for each key: such a key would be sent again",
    )
    one.add_argument("--dry-run", action="store_true", help="delete nothing, print what would be")

    one = parser.subcommand("export", "print all entries, with what the service returned")
    one.add_argument("--format", choices=("json", "csv"), default="json", help="default: json")

    one = parser.subcommand("create-tables", "make the tables, which tasks otherwise make on first use")
    one.add_argument(
        "--sql", action="store_true", help="print the statements, for a user who may create tables"
    )
    return parser


def _user() -> str | None:
    try:
        return getuser()
    except (ImportError, KeyError, OSError):  # a container's user may have no name
        return None


def _text(text: str) -> str:
    if not (stripped := text.strip()):  # as the operators strip keys
        raise argparse.ArgumentTypeError("is empty")
    return stripped


def _positive(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"should be a whole number, 1 or more, not {text!r}")
    return int(text)


def _days(text: str) -> int:
    if (number := _positive(text)) > MAX_DAYS:
        raise argparse.ArgumentTypeError(f"should be {MAX_DAYS} or less, not {text!r}")
    return number


def _json(text: str) -> tuple[Any]:
    try:
        return (from_json(text, allow_inf_nan=False),)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"should be JSON: {error}") from None
