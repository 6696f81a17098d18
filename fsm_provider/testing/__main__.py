"""Serve the fake for tests and trials: ``python -m fsm_provider fake``."""

from __future__ import annotations

import argparse
import base64
import json
import logging
import re
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPMethod
from math import inf
from typing import Any, get_args

from fsm_provider.testing import Engineer, FakeFieldService, FormPdf, faults
from fsm_provider.testing.form_pdf import Layout, Version, questions_of_all_forms
from fsm_provider.testing.settings import Dialect

EXAMPLES = """\
examples:
  %(prog)s --form-after 20 --form-name 'Gas Safety Record' --form-name 'Job Sign-off'
  %(prog)s --property 7 --property 8 --form '7:Warning Notice'
  %(prog)s --form-after 20 --form-version 2 --answer 'Is the appliance safe to use?=Unsafe'
  %(prog)s --form-after 20 --deliver http://127.0.0.1:8080/fsm/webhooks/fsm_default/jobs/a-token-of-20-characters
  %(prog)s --fail 'POST /properties/*/jobs 502' --fail 'GET /forms 429:30 2'
  %(prog)s --fail 'POST /properties/*/jobs reset-after always' --idempotency-header Idempotency-Key

a fault is one of:
  502            this status, 200 to 599; nothing is stored
  429:30         this status, with Retry-After: 30
  reset-before   the connection is reset; nothing is stored
  reset-after    the request is handled, e.g. the job stored, then the connection is reset
  delay:5        the request is handled, and the response comes 5 seconds later

GET /jobs lists the jobs, and GET /jobs/ID returns one. A browser needs no token and gets a page."""
RECEIVER = re.compile(r"http://.+/fsm/webhooks/(\w+)/(\w+)/([^/?]+)")
"""The URL of this package's receiver, for an object of a connection."""
SIGNING_SECRET = "whsec_ZmFrZS1zaWduaW5nLXNlY3JldA=="  # noqa: S105 - a fake's


def parse_arguments(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Serve a fake of the field-service API on 127.0.0.1 until interrupted.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port",
        type=_number(int, 0, 65535),
        default=8400,
        help="0: any free port (default: %(default)s)",
    )
    parser.add_argument(
        "--token", default="fake-token", help="accepted bearer token (default: %(default)s)"
    )
    parser.add_argument(
        "--dialect",
        choices=get_args(Dialect),
        default="specified",
        help="types of the pagination fields (default: %(default)s, which differs by listing)",
    )
    parser.add_argument(
        "--cursor-param",
        default="cursor",
        help="query parameter of a cursor (default: %(default)s)",
    )
    parser.add_argument(
        "--page-size",
        type=_number(int, 1),
        default=100,
        help="records per page (default: %(default)s)",
    )
    parser.add_argument(
        "--idempotency-header",
        type=_header,
        metavar="NAME",
        help="header of a key with which a write takes effect once (default: there is none)",
    )
    parser.add_argument(
        "--property",
        dest="properties",
        action="append",
        type=_number(int, 0),
        metavar="ID",
        help="a property that exists, may be repeated (default: any integer is one)",
    )
    parser.add_argument(
        "--form",
        dest="forms",
        action="append",
        type=_form,
        default=[],
        metavar="PROPERTY:NAME",
        help="a form that is completed already, against a job that was not created here; "
        "may be repeated",
    )
    parser.add_argument(
        "--asset-field",
        dest="asset_fields",
        action="append",
        type=_asset_field,
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="an asset dynamic field and its values; may be repeated",
    )
    parser.add_argument(
        "--form-after",
        type=_number(float, 0),
        metavar="SECONDS",
        help="complete forms against each job this long after its creation",
    )
    parser.add_argument(
        "--form-name",
        action="append",
        metavar="NAME",
        help="form to complete, may be repeated (default: Gas Safety Record)",
    )
    parser.add_argument(
        "--form-layout",
        choices=get_args(Layout),
        default="table",
        help="how the PDFs of forms look (default: %(default)s)",
    )
    parser.add_argument(
        "--form-version",
        type=int,
        choices=get_args(Version),
        default=1,
        help="version of the forms: 2 has other questions (default: %(default)s)",
    )
    parser.add_argument(
        "--answer",
        dest="answers",
        action="append",
        type=_answer,
        default=[],
        metavar="QUESTION=ANSWER",
        help="an answer in the PDFs of forms, instead of the usual one; may be repeated",
    )
    parser.add_argument(
        "--fail",
        dest="faults",
        action="append",
        type=_scripted_fault,
        default=[],
        metavar="'METHOD PATH FAULT [TIMES]'",
        help="fail so many requests that match (default: 1; always: all), * matches anything; "
        "may be repeated, the last that matches counts",
    )
    parser.add_argument(
        "--deliver",
        type=_target,
        metavar="URL",
        help="deliver each job that is created or updated there, as a webhook; "
        "on this machine only",
    )
    parser.add_argument(
        "--signing-secret",
        type=_signing_secret,
        default=SIGNING_SECRET,
        help="signs deliveries as Standard Webhooks describes (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.form_name and options.form_after is None:
        parser.error("--form-name needs --form-after")
    for property_id, name in options.forms:
        if options.properties and property_id not in options.properties:
            parser.error(
                f"argument --form: {property_id}:{name}: --property does not name this property"
            )
    return options


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider.testing"
) -> int:
    """Serve until SIGINT or SIGTERM."""
    options = parse_arguments(arguments, prog)
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("fsm_provider.testing").setLevel(logging.INFO)
    interrupted = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: interrupted.set())

    # A ledger or a watermark knows the identifiers of an earlier fake.
    id_offset = 10_000 * secrets.randbelow(200_000)
    try:
        service = _make_service(options, id_offset)
    except ValueError as error:
        print(f"--fail {str(error).partition('. ')[0]}", file=sys.stderr)
        return 2
    try:
        service.start()
    except OSError as error:
        print(f"--port {options.port}: {error.strerror}", file=sys.stderr)
        return 1
    with service:
        if options.deliver:
            service.add_webhook(options.deliver, options.signing_secret)
        for name, values in options.asset_fields:
            service.add_asset_dynamic_field(name, values=values)
        for job_id, (property_id, name) in enumerate(options.forms, start=id_offset + 1):
            service.add_form(
                job_id=job_id,
                property_id=property_id,
                form_name=name,
                pdf=_form_pdf(options),
            )
        print(f"Fake field service at {service.base_url}, token {service.settings.token}")
        print(f"export AIRFLOW_CONN_FSM_DEFAULT={shlex.quote(service.connection_json())}")
        receiver = RECEIVER.fullmatch(options.deliver or "")
        if receiver is not None:
            _print_variables(receiver, options.signing_secret)
        sys.stdout.flush()
        interrupted.wait()
    return 0


def _make_service(options: argparse.Namespace, id_offset: int) -> FakeFieldService:
    """Make the service that the options describe, which is not started."""
    engineer = None
    if options.form_after is not None:
        form_names = tuple(options.form_name or Engineer.form_names)
        engineer = Engineer(options.form_after, form_names, pdf=_form_pdf(options))
    service = FakeFieldService(
        port=options.port,
        token=options.token,
        dialect=options.dialect,
        cursor_param=options.cursor_param,
        page_size=options.page_size,
        properties=options.properties,
        idempotency_header=options.idempotency_header,
        engineer=engineer,
        id_offset=id_offset,
    )
    for method, path, fault, calls in options.faults:
        service.fail(method, path, fault, calls=calls, every=calls is None)
    return service


def _form_pdf(options: argparse.Namespace) -> FormPdf:
    return FormPdf(options.form_layout, options.form_version, dict(options.answers))


def _print_variables(receiver: re.Match[str], secret: str) -> None:
    """Print what the receiver of this package needs, but a secret only if it is the fake's own."""
    connection_id, object_, token = receiver.groups()
    settings = {"endpoints": {f"{connection_id}/{object_}": {"signature": "standard-webhooks"}}}
    suffix = f"{connection_id}_{object_}".upper()
    shown_secret = secret if secret == SIGNING_SECRET else "<SIGNING_SECRET>"
    print(f"export AIRFLOW_VAR_FSM_WEBHOOKS={shlex.quote(json.dumps(settings))}")
    print(f"export AIRFLOW_VAR_FSM_WEBHOOK_SECRET_TOKENS_{suffix}={shlex.quote(token)}")
    print(f"export AIRFLOW_VAR_FSM_WEBHOOK_SECRETS_{suffix}={shlex.quote(shown_secret)}")


def _number(kind: type[Any], minimum: float, maximum: float = inf) -> Callable[[str], Any]:
    """Make the function that parses a number of this kind, within these limits."""
    limits = f"at least {minimum}"
    if maximum != inf:
        limits += f", at most {maximum}"

    def parse(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = -inf
        is_within_limits = minimum <= number <= maximum
        if not is_within_limits or number == inf:
            raise argparse.ArgumentTypeError(f"should be a number, {limits}: {text!r}")
        return number

    return parse


def _header(text: str) -> str:
    if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"should be the name of a header, not {text!r}")
    return text


def _target(text: str) -> str:
    if not re.fullmatch(r"http://(127\.0\.0\.1|localhost)(:[0-9]{1,5})?/[!-~]*", text):
        raise argparse.ArgumentTypeError(
            f"should begin with http://127.0.0.1 and a port, not {text!r}"
        )
    return text


def _signing_secret(text: str) -> str:
    with suppress(ValueError):
        if len(base64.b64decode(text.removeprefix("whsec_"), validate=True)) >= 16:
            return text
    raise argparse.ArgumentTypeError(
        "should be base64 of at least 16 bytes, after whsec_ or without it"
    )


def _form(text: str) -> tuple[int, str]:
    property_id, _, name = text.partition(":")
    if not name.strip():
        raise argparse.ArgumentTypeError(f"should be PROPERTY:NAME, not {text!r}")
    return _number(int, 0)(property_id), name


def _asset_field(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not name.strip():
        raise argparse.ArgumentTypeError(f"should be NAME=VALUE,VALUE, not {text!r}")
    return name, [value for value in values.split(",") if value]


def _answer(text: str) -> tuple[str, str]:
    question, separator, answer = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"should be QUESTION=ANSWER, not {text!r}")
    known = questions_of_all_forms()
    if question not in known:
        listed = "; ".join(known)
        raise argparse.ArgumentTypeError(f"no form has the question {question!r}, only: {listed}")
    return question, answer


def _scripted_fault(text: str) -> tuple[str, str, faults.Fault, range | None]:
    words = text.split()
    if len(words) == 3:
        words.append("1")
    if len(words) != 4 or not words[1].startswith(("/", "*")):
        raise argparse.ArgumentTypeError(f"should be 'METHOD PATH FAULT [TIMES]', not {text!r}")
    method, path, fault, times = words
    if method != "*" and method.upper() not in set(HTTPMethod):
        raise argparse.ArgumentTypeError(
            f"should begin with a method of HTTP, such as GET, or *, not {method!r}"
        )
    calls = None
    if times != "always":
        calls = range(1, _number(int, 1)(times) + 1)
    return method, path, _fault(fault), calls


def _fault(text: str) -> faults.Fault:
    kind, colon, seconds = text.partition(":")
    if text in ("reset-before", "reset-after"):
        return faults.Reset(after_handling=text == "reset-after")
    if kind == "delay":
        return faults.Delay(_number(float, 0)(seconds))
    if re.fullmatch(r"[2-5][0-9][0-9]", kind):
        retry_after = _number(int, 0)(seconds) if colon else None
        return faults.Status(int(kind), retry_after=retry_after)
    raise argparse.ArgumentTypeError(
        "should be a status such as 502 or 429:30, reset-before, reset-after or delay:5, "
        f"not {text!r}"
    )


if __name__ == "__main__":
    sys.exit(main())
