"""
What the settings of all kinds of publisher have in common.

Each kind has a module beside this one; `union` lists them. What `relay.yaml` and an OutboxRelay
share is in a base class there, as here: in the file a secret is a `SecretRef` or a path, in the
resource a key of a Secret.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from outbox_core.contract.values import Duration, SecretRef, Settings

Format = Literal["Raw", "CloudEvents", "Debezium"]


class PublisherKind(Settings):
    """Base of every kind."""

    why_unordered: ClassVar[str] = ""
    """Of a kind that cannot keep the order of a key, or only with some settings: the reason."""

    delivery_timeout: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=30)
    """How long the client tries to deliver one message; what it resends in that time is one
    attempt. Must be shorter than the lease, or another relay could claim the event before a late
    acknowledgement arrives."""
    max_message_bytes: Annotated[int, Field(ge=1000)] = 1_000_000
    """Larger messages are refused before they are sent. Set it to the broker's own limit at
    most."""

    @property
    def holds_order(self) -> bool:
        """Whether `ordering: Key` is possible with these settings. A kind where that depends on
        them overrides it, and has the same in CEL in the operator's `spec.publishers.union`."""
        return not self.why_unordered


class FormattedKind(PublisherKind):
    """Base of the kinds whose messages have headers."""

    format: Format = "Raw"
    """Raw: the payload and the application's headers as they are, plus outbox-* headers.
    CloudEvents: the payload and the application's headers as they are, plus the event's fields as
    CloudEvents headers (binary mode). Debezium: the layout of Debezium's outbox event router, which
    is the payload and one header, `id`."""
    source: Annotated[str, Field(min_length=1)] = "/outbox"
    """The CloudEvents source: which system the events come from."""


class Tls(Settings):
    ca_file: Path | None = None
    """The CA that signed the server's certificate. Default: the system's."""
    cert_file: Path | None = None
    """The relay's own certificate, if the server asks for one (mutual TLS)."""
    key_file: Path | None = None
    """The private key of that certificate."""
    key_password: SecretRef | None = None
    """The key's password, if the key is encrypted."""
