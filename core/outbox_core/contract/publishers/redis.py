"""Redis Streams, or a server that speaks its protocol, such as Valkey."""

from datetime import timedelta
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import Format, FormattedKind, Tls
from outbox_core.contract.values import Duration, SecretRef, Settings

NO_LOGIN_IN_URL: Final = (
    "url must not contain a user name or a password: anyone can read this field; use the username "
    "and password fields"
)
TLS_BY_URL: Final = "tls needs a url that begins with rediss://"


class RedisWait(Settings):
    replicas: Annotated[int, Field(ge=0, le=100)] = 0
    """How many replicas must have an event before it counts as published (WAIT)."""
    aof: bool = False
    """Whether the server must have written it to its append-only file, and the file to the disk
    (WAITAOF, since Redis 7.2); with `replicas`, they too. With `appendfsync everysec`, a batch
    takes up to a second."""
    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=1), le=timedelta(minutes=10))] = (
        timedelta(seconds=5)
    )
    """How long to wait for it; not longer than what is left of `deliveryTimeout`."""


class RedisStreams(FormattedKind):
    url: Annotated[
        str,
        Field(
            max_length=500,
            pattern=r"^rediss?://([^\s/?#]*@)?(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?"
            r"(/[0-9]{0,5})?$",
        ),
    ]
    """`redis://host:port/database`, or `rediss://...` for TLS. Without a port it is 6379, without a
    database 0. A user name and a password have fields of their own. Redis Cluster and Sentinel are
    not supported: name the primary, or what leads to it."""
    stream: Annotated[str, Field(min_length=1)] = "{event_type}"
    """A template that may use {event_type}, {aggregate_type} and {tenant_id}. A stream that does
    not exist is created by its first event."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """If present, Redis keeps about this many entries per stream (MAXLEN ~); older ones are
    dropped, read or not. Default: it keeps all, until somebody trims the stream."""
    wait: RedisWait = RedisWait()
    """What an acknowledgement waits for. Default: the server's own answer, which it gives when the
    event is in its memory, or on its disk with `appendfsync always`."""
    format: Format = "Raw"
    """Raw: an entry has the fields payload, key and headers, with outbox-* headers beside the
    application's. CloudEvents: the same fields, the event's own as ce_* headers. Debezium: the
    layout of Debezium Server (`redis.message.format: extended`) behind its outbox event router:
    the fields key (aggregate_id), value and ID (the event's id). Its own streams are
    `outbox.event.{aggregate_type}`: set `stream` to that. An event without an aggregate_id is
    refused."""
    max_message_bytes: Annotated[int, Field(ge=1000, le=500_000_000)] = 1_000_000
    """Larger entries are refused before they are sent. Redis itself takes up to 512 MB."""

    @model_validator(mode="after")
    def login_is_elsewhere(self) -> Self:
        if "@" in self.url:
            raise ValueError(NO_LOGIN_IN_URL)
        return self

    @property
    def with_tls(self) -> bool:
        return self.url.startswith("rediss:")


class RedisSettings(RedisStreams):
    username: SecretRef | None = None
    """The ACL user that the relay logs in as. Default: the server's user `default`."""
    password: SecretRef | None = None
    """Read again for every new connection, so that a changed password needs no restart."""
    tls: Tls | None = None
    """Certificates for a `rediss://` url."""

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        if self.tls is not None and not self.with_tls:
            raise ValueError(TLS_BY_URL)
        if self.username is not None and self.password is None:
            raise ValueError("username needs password: add it")
        return self
