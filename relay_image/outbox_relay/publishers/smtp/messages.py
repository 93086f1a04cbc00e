"""
From a claim to a message as it is sent: the same bytes at every attempt.

So the Message-ID, the Date and the MIME boundaries come from the event. A server or a reader that
drops what it has seen then recognises a copy.
"""

import re
from dataclasses import dataclass
from email.generator import BytesGenerator
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from io import BytesIO
from typing import Final

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.smtp.payload import Email, Unfit, parse

POLICY: Final = SMTP.clone(cte_type="7bit")
"""So no server needs 8BITMIME."""
_LEADING_DOT: Final = re.compile(rb"^\.", re.MULTILINE)


@dataclass(frozen=True)
class Letter:
    """An envelope and what is in it."""

    sender: str
    sender_from_event: bool
    recipients: list[str]
    content: bytes
    """With its lines ended by CRLF, and not yet with dots doubled."""

    @property
    def data(self) -> bytes:
        """As it follows DATA, with the final dot."""
        return _LEADING_DOT.sub(b"..", self.content) + b".\r\n"


class Letters:
    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._sender = Address(addr_spec=settings.sender)
        self._any = "*" in settings.allowed_recipient_domains
        domains = [domain.lower() for domain in settings.allowed_recipient_domains]
        self._domains = frozenset(domains)
        self._below = tuple(domain[1:] for domain in domains if domain.startswith("*."))

    def __call__(self, claim: Claim) -> Letter | Refused:
        try:
            email = parse(claim.payload)
            self._judge(email)
            content = self._write(claim, email)
        except Unfit as error:
            return refused(error.code, str(error))
        if len(content) > self._settings.max_message_bytes:
            return refused(
                "MESSAGE_TOO_LARGE",
                f"the message has {len(content)} bytes, and maxMessageBytes is "
                f"{self._settings.max_message_bytes}",
            )
        sender = email.sender or self._sender
        return Letter(sender.addr_spec, email.sender is not None, email.recipients, content)

    def _judge(self, email: Email) -> None:
        recipients = email.recipients
        if len(recipients) > self._settings.max_recipients:
            raise Unfit(
                "TOO_MANY_RECIPIENTS",
                f"{len(recipients)} recipients, and maxRecipients is "
                f"{self._settings.max_recipients}",
            )
        for address in recipients:
            if not self._allows(address.rpartition("@")[2].lower()):
                raise Unfit(
                    "RECIPIENT_NOT_ALLOWED",
                    f"{address} is not in a domain of allowedRecipientDomains",
                )
        if email.sender is None or self._settings.allow_sender_from_event:
            return
        if email.sender.addr_spec.lower() != self._settings.sender.lower():
            raise Unfit(
                "SENDER_NOT_ALLOWED",
                f"the payload's from is {email.sender.addr_spec}, and not the relay's sender; "
                "allowSenderFromEvent would allow it",
            )

    def _allows(self, domain: str) -> bool:
        return self._any or domain in self._domains or domain.endswith(self._below)

    def _write(self, claim: Claim, email: Email) -> bytes:
        message = EmailMessage(POLICY)
        message["From"] = email.sender or self._sender
        for name, addresses in (("To", email.to), ("Cc", email.cc), ("Reply-To", email.reply_to)):
            if addresses:
                message[name] = addresses
        if not email.to and not email.cc:
            message["To"] = "undisclosed-recipients:;"
        message["Subject"] = email.subject
        message["Date"] = format_datetime(claim.created_at)
        # Of the relay's own domain: so it stays unique, whoever the event's sender is.
        message["Message-ID"] = f"<{claim.event_id}@{self._sender.domain}>"
        message["X-Outbox-Event-Id"] = claim.event_id
        key = email.idempotency_key or claim.idempotency_key
        if key is not None and key.isprintable() and key.isascii():
            message["X-Idempotency-Key"] = key
        if not any(name.lower() == "auto-submitted" for name, _ in email.headers):
            message["Auto-Submitted"] = "auto-generated"  # out-of-office replies help nobody
        for name, value in email.headers:
            message[name] = value
        self._fill(message, email)
        for number, part in enumerate(message.walk()):
            if part.is_multipart():
                part.set_boundary(f"=_{claim.event_id}.{number}")
        written = BytesIO()
        BytesGenerator(written, policy=POLICY).flatten(message)
        content = written.getvalue()
        return content if content.endswith(b"\r\n") else content + b"\r\n"

    @staticmethod
    def _fill(message: EmailMessage, email: Email) -> None:
        if email.text is not None:
            message.set_content(email.text)
            if email.html is not None:
                message.add_alternative(email.html, subtype="html")
        else:
            message.set_content(email.html, subtype="html")
        for attached in email.attachments:
            maintype, _, subtype = attached.content_type.partition("/")
            message.add_attachment(
                attached.content, maintype=maintype, subtype=subtype, filename=attached.filename
            )
