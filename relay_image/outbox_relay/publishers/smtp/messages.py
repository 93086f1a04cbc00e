"""
From a claim to a message as it is sent: the same bytes at every attempt.

The Message-ID, the Date and the MIME boundaries come from the event, so a server or a reader that
drops duplicates recognises a copy.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import format_datetime
from typing import Final

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim, datetime_of
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.smtp.mime import (
    Field,
    Part,
    address_field,
    file_part,
    finished,
    make_field,
    multipart,
    text_field,
    text_part,
)
from outbox_relay.publishers.smtp.payload import Email, Mailbox, Unfit, parse

_LEADING_DOT: Final = re.compile(rb"^\.", re.MULTILINE)


@dataclass(frozen=True)
class Letter:
    """An envelope and its content."""

    sender: str
    sender_from_event: bool
    recipients: list[str]
    content: bytes
    """Its lines end with CRLF; leading dots are not doubled yet."""

    @property
    def data(self) -> bytes:
        """As it follows DATA, with the final dot."""
        return _LEADING_DOT.sub(b"..", self.content) + b".\r\n"


class Letters:
    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._sender = Mailbox("", settings.sender)
        self._any = "*" in settings.allowed_recipient_domains
        domains = [domain.lower() for domain in settings.allowed_recipient_domains]
        self._domains = frozenset(domains)
        self._below = tuple(domain[1:] for domain in domains if domain.startswith("*."))

    def __call__(self, claim: Claim) -> Letter | Refused:
        try:
            email = parse(claim.payload)
            self._check_allowed(email)
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
        return Letter(sender.address, email.sender is not None, email.recipients, content)

    def _check_allowed(self, email: Email) -> None:
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
        if email.sender.address.lower() != self._settings.sender.lower():
            raise Unfit(
                "SENDER_NOT_ALLOWED",
                f"the payload's from is {email.sender.address}, and not the relay's sender; "
                "allowSenderFromEvent would allow it",
            )

    def _allows(self, domain: str) -> bool:
        return self._any or domain in self._domains or domain.endswith(self._below)

    def _write(self, claim: Claim, email: Email) -> bytes:
        part = _body(claim.event_id, email)
        return finished(Part((*self._fields(claim, email), *part.fields), part.body))

    def _fields(self, claim: Claim, email: Email) -> Iterator[Field]:
        yield address_field("From", [email.sender or self._sender])
        for name, mailboxes in (("To", email.to), ("Cc", email.cc), ("Reply-To", email.reply_to)):
            if mailboxes:
                yield address_field(name, mailboxes)
        if not email.to and not email.cc:
            yield make_field("To", "undisclosed-recipients:;")
        yield text_field("Subject", email.subject)
        yield make_field("Date", format_datetime(datetime_of(claim.created_at)))
        # In the relay's own domain: so it stays unique, whatever sender the event names.
        yield make_field("Message-ID", f"<{claim.event_id}@{self._sender.domain}>")
        yield make_field("X-Outbox-Event-Id", claim.event_id)
        key = email.idempotency_key or claim.idempotency_key
        if key is not None and key.isprintable() and key.isascii():
            yield text_field("X-Idempotency-Key", key)
        if not any(name.lower() == "auto-submitted" for name, _ in email.headers):
            # Nobody needs out-of-office replies.
            yield make_field("Auto-Submitted", "auto-generated")
        for name, value in email.headers:
            yield text_field(name, value)
        yield make_field("MIME-Version", "1.0")


def _body(event_id: str, email: Email) -> Part:
    texts = ((email.text, "plain"), (email.html, "html"))
    bodies = [text_part(text, subtype) for text, subtype in texts if text is not None]
    body = bodies[0] if len(bodies) == 1 else multipart("alternative", f"{event_id}.1", bodies)
    files = [
        file_part(file.filename, file.content_type, file.content) for file in email.attachments
    ]
    return multipart("mixed", f"{event_id}.0", [body, *files]) if files else body
