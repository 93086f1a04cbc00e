"""Apache Kafka, or a broker that speaks its protocol. See also `librdkafka` beside this package."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import Format, FormattedKind, Tls
from outbox_core.contract.values import Duration, SecretRef, Settings


class SaslMechanism(Settings):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """The mechanism that the broker uses. OAUTHBEARER takes a token instead of a user name and a
    password. PLAIN sends the password itself, and OAUTHBEARER the token: use them only with
    TLS."""
    token_lifetime: Annotated[Duration, Field(ge=timedelta(seconds=10))] = timedelta(minutes=5)
    """With OAUTHBEARER, for a token that does not contain its expiry (a JWT has it in `exp`): how
    long it is used before it is read again."""


class Sasl(SaslMechanism):
    username: SecretRef | None = None
    """The user name that the relay logs in with. Required, except with OAUTHBEARER."""
    password: SecretRef | None = None
    """Read again for every new producer, so that a changed password needs no restart. Required,
    except with OAUTHBEARER."""
    token: SecretRef | None = None
    """Required with OAUTHBEARER, and only there. Read again before it expires: so it may be a file
    that somebody else renews, such as a service account's token of Kubernetes."""

    @model_validator(mode="after")
    def fits_its_mechanism(self) -> "Sasl":
        named = self.username is not None, self.password is not None
        if self.mechanism == "OAUTHBEARER":
            if any(named) or self.token is None:
                raise ValueError("OAUTHBEARER needs token, and neither username nor password")
        elif not all(named) or self.token is not None:
            raise ValueError(f"{self.mechanism} needs username and password, and no token")
        return self


class KafkaProducer(FormattedKind):
    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """`host:port`, several separated by commas."""
    topic: Annotated[str, Field(min_length=1)] = "{event_type}"
    """A template that may use {event_type}, {aggregate_type} and {tenant_id}."""
    format: Format = "Raw"
    """Raw: the payload and the application's headers as they are, plus outbox-* headers.
    CloudEvents: the payload as it is, the event's fields as ce_* headers (binary mode).
    Debezium: the layout of Debezium's outbox event router, so that its consumers need no change:
    the payload as it is, aggregate_id as the record's key, the event's id as the only header, `id`.
    Its own topics are `outbox.event.{aggregate_type}`: set `topic` to that. An event without an
    aggregate_id has no key, and partition_key is not used."""
    linger: Annotated[Duration, Field(le=timedelta(seconds=1))] = timedelta(milliseconds=0)
    """How long the client waits for more messages while events trickle in. Large batches wait at
    least 20 ms, because a request for each of their messages would cost more."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """None by default, because it costs CPU that the relay needs to drain a backlog. Use lz4 or
    zstd if the network or the broker's disk is the bottleneck."""


class KafkaSettings(KafkaProducer):
    tls: Tls | None = None
    """If present, even if empty, the relay connects with TLS."""
    sasl: Sasl | None = None
    """If present, the relay logs in: with a user name and a password, or with a token."""
    config: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """More settings of librdkafka, for what has no field here. Settings that the delivery guarantee
    depends on (acks, idempotence, ordering of requests, timeouts) cannot be changed."""
