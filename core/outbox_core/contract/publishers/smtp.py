"""E-mail: an event is a message, handed to a mail server by SMTP."""

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import PublisherKind, Tls
from outbox_core.contract.values import Duration, SecretRef

ADDRESS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*"
DOMAIN = r"\*|(\*\.)?[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*"

NAME_AND_PASSWORD = "username and password go together: add the other one"  # noqa: S105
LOGIN_IN_CLEAR = "startTls None would send the password in clear: encrypt, or do not log in"
TLS_UNUSED = "tls has no meaning with startTls None: remove the one or the other"

RecipientDomain = Annotated[str, Field(max_length=255, pattern=f"^({DOMAIN})$")]


class SmtpBase(PublisherKind):
    why_unordered = "a mail server queues every message by itself, and a later one may overtake it"

    host: Annotated[str, Field(min_length=1, max_length=253)]
    """The mail server that takes the messages, by name or IP address."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """587 is for programs that send mail; 465 goes with `startTls: Implicit`."""
    start_tls: Literal["Required", "Implicit", "None"] = "Required"
    """Required: the connection is encrypted by STARTTLS before anything is sent; a server that
    cannot is an outage. Implicit: encrypted from the first byte. None: not encrypted, for a server
    in the same pod; it cannot be used with a password. There is no way to encrypt only where
    possible, because an attacker on the network could turn encryption off."""
    helo_name: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z0-9.:\[\]-]+$")] | None = None
    """How the relay introduces itself (EHLO). Default: the host's own name."""
    sender: Annotated[str, Field(max_length=254, pattern=f"^{ADDRESS}$")]
    """The address in From, and of the envelope: bounces go there."""
    allow_sender_from_event: bool = False
    """Whether `from` of the payload replaces the sender. If not, an event with another one is
    refused, because anyone who can emit events could send mail as anyone."""
    allowed_recipient_domains: Annotated[
        tuple[RecipientDomain, ...], Field(min_length=1, max_length=1000)
    ]
    """Whom events may write to: `example.com`, `*.example.com` for the domains below it, or `*` for
    everybody. Required, so that a copy of production cannot mail real people by accident. An event
    with any other recipient is refused as a whole."""
    max_recipients: Annotated[int, Field(ge=1, le=1000)] = 50
    """An event with more recipients (to, cc and bcc together) is refused."""
    max_message_bytes: Annotated[int, Field(ge=1000, le=1_000_000_000)] = 10_000_000
    """Larger messages, as they are sent and with attachments, are refused before that. A smaller
    limit announced by the server takes precedence."""
    in_doubt: Literal["Resend", "Hold"] = "Resend"
    """What becomes of an event when the connection is lost after the whole message was sent and
    before the answer came: nobody knows whether it was taken. Resend: it is tried again, at the
    expense of its attempts; perhaps the recipients get it more than once, with the same Message-ID.
    Hold: it becomes DEAD with the code IN_DOUBT, and a person decides."""
    connections: Annotated[int, Field(ge=1, le=50)] = 4
    """How many connections a relay keeps at most. Many servers allow few from one client."""
    delivery_timeout: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=30)
    """How long a batch may take. In its second half no message is begun, so that each has that
    long to be answered; what was not begun costs nothing. A message that was sent and is not
    answered by then is in doubt. Must be shorter than the lease."""

    def encrypted(self, login: bool, certificates: bool) -> Self:
        """Itself, unless it has what only an encrypted connection may."""
        if self.start_tls == "None" and login:
            raise ValueError(LOGIN_IN_CLEAR)
        if self.start_tls == "None" and certificates:
            raise ValueError(TLS_UNUSED)
        return self


class SmtpSettings(SmtpBase):
    username: SecretRef | None = None
    """The user name that the relay logs in with."""
    password: SecretRef | None = None
    """Read again for every new connection, so that a changed password needs no restart."""
    tls: Tls | None = None
    """CA to trust, and the relay's client certificate. Default: the system's CAs, no
    certificate."""

    @model_validator(mode="after")
    def fits_its_encryption(self) -> "SmtpSettings":
        if (self.username is None) != (self.password is None):
            raise ValueError(NAME_AND_PASSWORD)
        return self.encrypted(self.username is not None, self.tls is not None)
