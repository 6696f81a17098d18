"""A mail server that keeps the mails it accepts."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, cast

from aiosmtpd.controller import Controller

from tests.system.local_airflow import free_port


@dataclass
class Mailbox:
    """The mails that were accepted.

    :param env: Airflow's connection ``smtp_default``.
    """

    env: Mapping[str, str]
    mails: list[EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.mails.append(cast(EmailMessage, mail))
        return "250 accepted"


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """Run a server on a free port of 127.0.0.1."""
    port = free_port()
    connection = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": port,
        "extra": {
            "from_email": "office@example.com",
            "disable_ssl": True,
            "disable_tls": True,
        },
    }
    mailbox = Mailbox({"AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(connection)})
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
