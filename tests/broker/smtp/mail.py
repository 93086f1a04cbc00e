"""A mail server with a mailbox for each test, and publishers that send to it."""

import email
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from conformance.publisher_contract import make_claim
from dev.services import Exim, scratch, wait_until
from fixtures.certificates import Authority
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.model.event import Claim
from outbox_relay.publishers.smtp.publisher import SmtpPublisher

SENDER = "shop@example.test"


@dataclass
class MailServer:
    exim: Exim
    ca: Path


@pytest.fixture(scope="session")
def mail_server() -> Iterator[MailServer]:
    with scratch() as folder:
        authority = Authority(folder / "ca", "test")
        with Exim(folder / "exim", authority.issue("exim", "localhost")) as exim:
            yield MailServer(exim, authority.cert)


@pytest.fixture
def exim(mail_server: MailServer) -> Iterator[Exim]:
    """The test may stop, kill or freeze it."""
    yield mail_server.exim
    mail_server.exim.resume()
    mail_server.exim.start()


@dataclass
class Mailbox:
    address: str
    folder: Path

    def wait_for(self, n: int, timeout: float = 60) -> list[EmailMessage]:
        """All that there are, once there are n."""
        wait_until(lambda: len(list(self.folder.iterdir())) >= n, timeout, f"{n} messages")
        files = sorted(self.folder.iterdir())
        return [email.message_from_bytes(f.read_bytes(), policy=default) for f in files]


class MakeMailbox(Protocol):
    def __call__(self) -> Mailbox: ...


@pytest.fixture
def make_mailbox(exim: Exim) -> MakeMailbox:
    def make() -> Mailbox:
        name = f"user-{uuid4().hex[:12]}"
        return Mailbox(f"{name}@example.test", exim.make_mailbox(name))

    return make


@pytest.fixture
def mailbox(make_mailbox: MakeMailbox) -> Mailbox:
    return make_mailbox()


class MakePublisher(Protocol):
    def __call__(self, *, timeout: float = 60, **settings: Any) -> SmtpPublisher:
        """A publisher of the test's server, over TLS, with these settings."""


@pytest.fixture
def make_publisher(mail_server: MailServer) -> Iterator[MakePublisher]:
    made: list[SmtpPublisher] = []

    def make(*, timeout: float = 60, **settings: Any) -> SmtpPublisher:
        filled = {
            "host": "localhost",
            "port": mail_server.exim.port,
            "tls": Tls(ca_file=mail_server.ca),
            "sender": SENDER,
            "allowed_recipient_domains": ("example.test",),
            "max_message_bytes": 2_500_000,
            "delivery_timeout": timedelta(seconds=timeout),
            **settings,
        }
        made.append(SmtpPublisher(SmtpSettings(**filled)))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))


def letter(to: str | list[str], subject: str = "Order", **fields: Any) -> Claim:
    """An event that is a message; claim_... is for the event itself."""
    own = {n.removeprefix("claim_"): fields.pop(n) for n in list(fields) if n.startswith("claim_")}
    body = {} if {"body", "body_text", "body_html"} & fields.keys() else {"body_text": "Hello"}
    payload = {"to": to, "subject": subject, **body, **fields}
    return make_claim(json.dumps(payload).encode(), **own)
