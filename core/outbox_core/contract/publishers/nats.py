"""NATS JetStream."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import FormattedKind, Tls
from outbox_core.contract.values import SecretRef

ServerUrl = Annotated[str, Field(pattern=r"^(nats|tls)://[A-Za-z0-9._:\[\]-]+$", max_length=300)]


class NatsBase(FormattedKind):
    servers: Annotated[tuple[ServerUrl, ...], Field(min_length=1, max_length=20)]
    """`nats://host:port`, or `tls://host:port` to refuse a connection without TLS. The port is 4222
    if absent. Of several, the relay uses the first that answers, starting with any of them."""
    subject: Annotated[str, Field(min_length=1)] = "{event_type}"
    """A template that may use {event_type}, {aggregate_type} and {tenant_id}."""
    stream: Annotated[str, Field(pattern=r"^[^\s.*>/\\]+$", max_length=255)] | None = None
    """The stream that the events must be stored in. If a subject belongs to another one, the server
    refuses the event. Default: whichever stream has the subject."""
    atomic: Literal["Auto", "Never"] = "Auto"
    """Auto: where a stream has `allow_atomic` (NATS 2.12 or newer), events are published in atomic
    batches of up to 1000. That keeps a key's order at full speed, and shares one disk write. The
    relay must be allowed to ask for the names and settings of streams. Never: each event by
    itself."""
    deduplicate: bool = True
    """Publish the event's id as `Nats-Msg-Id`: the server then stores an event once, however often
    it is sent within the stream's duplicate window."""


class NatsSettings(NatsBase):
    username: SecretRef | None = None
    """The user name that the relay logs in with. Needs `password`."""
    password: SecretRef | None = None
    """Read again for every new connection, so that a changed password needs no restart."""
    token: SecretRef | None = None
    """A token to log in with, instead of a user name."""
    credentials_file: Path | None = None
    """A `.creds` file (a user's JWT and its nkey seed), or a file with an nkey seed alone. Read
    again for every new connection."""
    tls: Tls | None = None
    """If present, even if empty, the relay connects with TLS."""

    @model_validator(mode="after")
    def logs_in_one_way(self) -> "NatsSettings":
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together: add the other one")
        if sum(x is not None for x in (self.username, self.token, self.credentials_file)) > 1:
            raise ValueError("log in by username and password, token or credentialsFile: only one")
        return self
