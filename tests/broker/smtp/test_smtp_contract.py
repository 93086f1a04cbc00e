"""E-mail keeps the contract of a publisher: the payload is an attachment of the message."""

import json
from base64 import b64encode
from dataclasses import dataclass

import pytest

from broker.smtp.mail import Mailbox, MakePublisher
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import Exim
from outbox_core.model.event import Claim
from outbox_relay.publishers.smtp.publisher import SmtpPublisher

pytestmark = pytest.mark.smtp


@dataclass
class SmtpTarget(Target):
    publisher: SmtpPublisher
    server: Exim
    mailbox: Mailbox
    carries_headers = False

    def fit(self, claim: Claim) -> Claim:
        attached = {"filename": "payload", "content_base64": b64encode(claim.payload).decode()}
        payload = {
            "to": self.mailbox.address,
            "subject": claim.event_type,
            "body": "",
            "attachments": [attached],
        }
        return claim._replace(payload=json.dumps(payload).encode())

    def received(self, n: int) -> list[Received]:
        found = []
        for message in self.mailbox.wait_for(n):
            (part,) = message.iter_attachments()
            headers: list[tuple[str, bytes | None]] = [
                (name.lower(), str(value).encode()) for name, value in message.items()
            ]
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            found.append(Received(payload, None, headers, str(message["X-Outbox-Event-Id"])))
        return found

    def refused_claim(self) -> Claim:
        return make_claim(b"{not json")

    def break_down(self) -> None:
        self.publisher.probe()
        self.server.pause()


@pytest.fixture
def target(
    request: pytest.FixtureRequest, exim: Exim, mailbox: Mailbox, make_publisher: MakePublisher
) -> Target:
    timeout = 2 if "tc_15" in request.node.name or "does_not_answer" in request.node.name else 60
    return SmtpTarget(make_publisher(timeout=timeout), exim, mailbox)


class TestSmtp(PublisherContract):
    pass
