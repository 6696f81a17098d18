"""Find out how deliveries are signed: ``python -m fsm_provider.plugins.webhooks verify``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fsm_provider.plugins.webhooks.finding import endpoint_of, find, read_headers


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m fsm_provider.plugins.webhooks")
    verify = parser.add_subparsers(dest="command", required=True).add_parser(
        "verify",
        help="find the signature scheme of a captured delivery",
        description="Try the known signature schemes on a delivery that was captured, offline, and print the "
        "receiver's settings that fit. How old the delivery is does not matter.",
    )
    verify.add_argument(
        "--headers", type=Path, required=True, help="a file of Name: value lines, or of a JSON object"
    )
    verify.add_argument("--body", type=Path, required=True, help="a file of the body, byte for byte")
    verify.add_argument(
        "--secret-file", type=Path, required=True, help="a file of the signing secret, and nothing else"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print what fits; the exit code is 0 where something does, 1 where nothing does, else 2."""
    given = parse_arguments(arguments)
    try:
        headers = read_headers(given.headers.read_text(encoding="latin-1"))
        body = given.body.read_bytes()
        secret = given.secret_file.read_text().strip()
    except (OSError, ValueError) as error:
        print(str(error), file=sys.stderr)
        return 2
    if not secret:
        print(f"{given.secret_file} is empty", file=sys.stderr)
        return 2
    schemes, note = find(headers, body, secret), ""
    if not schemes and body.endswith(b"\n"):
        schemes = find(headers, body.rstrip(b"\r\n"), secret)
        note = "The body fits without the line break at its end, which the capture has added."
    if not schemes:
        print(
            "None of the known schemes fits. Check that the secret is that of this registration, and that "
            "the body is as it came, byte for byte. A scheme that signs the address too is not among them."
        )
        return 1
    if note:
        print(note)
    print("The endpoint's settings in the Variable fsm_webhooks:")
    for scheme in schemes:
        print(json.dumps(endpoint_of(scheme), indent=2))
    if all(scheme.timestamp_header is None for scheme in schemes):
        print(
            "No time of sending is signed: who has captured a delivery can send it again once it is "
            "forgotten, after 24 hours."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
