"""Find out how deliveries are signed: ``python -m fsm_provider webhook verify``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fsm_provider.plugins.webhooks.scheme_detection import endpoint_settings, find_schemes, parse_headers
from fsm_provider.plugins.webhooks.settings import MIN_KEY_BYTES
from fsm_provider.plugins.webhooks.signature import is_strong

EXAMPLES = """\
examples:
  {command} --headers headers.txt --body body.bin --secret-file secret.txt

exit code: 0 if a scheme fits, 1 if none does, 2 if a file cannot be read."""


def parse_arguments(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Find out how the deliveries of webhooks are signed.",
        epilog=EXAMPLES.format(command="%(prog)s verify"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify = parser.add_subparsers(dest="command", required=True).add_parser(
        "verify",
        help="find the signature scheme of a captured delivery",
        description="Try the known signature schemes on a delivery that was captured, offline, and print\n"
        "the receiver's settings that fit. How old the delivery is does not matter.",
        epilog=EXAMPLES.format(command="%(prog)s"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "--headers", type=Path, required=True, help="a file of Name: value lines, or of a JSON object"
    )
    verify.add_argument("--body", type=Path, required=True, help="a file of the body, byte for byte")
    verify.add_argument(
        "--secret-file", type=Path, required=True, help="a file of the signing secret, and nothing else"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider webhook") -> int:
    """Print the schemes that fit; return 0 if any does, 1 if none does, 2 if a file cannot be read."""
    given = parse_arguments(arguments, prog)
    try:
        headers = parse_headers(given.headers.read_text(encoding="latin-1"))
        body = given.body.read_bytes()
        secret = given.secret_file.read_text().strip()
    except (OSError, ValueError) as error:
        print(str(error), file=sys.stderr)
        return 2
    if not secret:
        print(f"{given.secret_file} is empty", file=sys.stderr)
        return 2
    schemes, note = find_schemes(headers, body, secret), ""
    if not schemes and body.endswith(b"\n"):
        schemes = find_schemes(headers, body.rstrip(b"\r\n"), secret)
        note = "The body fits without the line break at its end, which the capture added."
    if not schemes:
        print(
            "None of the known schemes fits. Check that the secret is that of this registration, and that "
            "the body is as it was received, byte for byte. Schemes that also sign the URL are not known. "
            "The receiver refuses a delivery with two signature headers, or two times of sending."
        )
        return 1
    if note:
        print(note)
    print("The endpoint's settings in the Variable fsm_webhooks:")
    for scheme in schemes:
        print(json.dumps(endpoint_settings(scheme), indent=2))
    if not any(is_strong(scheme, secret) for scheme in schemes):
        print(
            f"The receiver refuses this secret: its key has fewer than {MIN_KEY_BYTES} bytes, or too few "
            "distinct ones."
        )
    if all(scheme.timestamp_header is None for scheme in schemes):
        print(
            "No time of sending is signed: whoever has captured a delivery can send it again once the "
            "receiver has forgotten it, after 24 hours."
        )
    return 0
