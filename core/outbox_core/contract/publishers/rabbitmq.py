"""RabbitMQ, by AMQP 0-9-1."""

from datetime import timedelta
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import FormattedKind, Tls
from outbox_core.contract.values import Duration, SecretRef

USERNAME_AND_PASSWORD = "username and password go together: add the other one"  # noqa: S105
HOSTS_ALONE: Final = (
    "hosts: write host or host:port, without amqp:// and without a login: username and password "
    "have fields of their own, and so has the vhost"
)


class RabbitMQBase(FormattedKind):
    hosts: Annotated[str, Field(min_length=1)]
    """`host` or `host:port`, several separated by commas: nodes of one cluster, of which the first
    that answers is used. The port is 5672 unless given, with TLS 5671."""
    vhost: Annotated[str, Field(min_length=1, max_length=255)] = "/"
    """The virtual host."""
    exchange: Annotated[str, Field(max_length=127)] = ""
    """Where events are published to. It must exist: the relay creates none. Default: AMQP's own
    default exchange, which every vhost has, and which takes an event to the queue that has the
    routing key as its name. For several consumers of one event, name an exchange of your own, of
    type topic for example, to which each consumer binds a queue."""
    routing_key: Annotated[str, Field(min_length=1, max_length=255)] = "{event_type}"
    """A template that may use {event_type}, {aggregate_type} and {tenant_id}. An event for which no
    queue is bound is not published: it is tried again, and finally DEAD."""
    heartbeat: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))] = (
        timedelta(seconds=30)
    )
    """How often both sides show that they are still there; the server's own value, if it is
    shorter."""

    @model_validator(mode="after")
    def login_is_elsewhere(self) -> Self:
        if "@" in self.hosts or "/" in self.hosts:
            raise ValueError(HOSTS_ALONE)
        return self


class RabbitMQSettings(RabbitMQBase):
    username: SecretRef | None = None
    """The user that the relay logs in as. Without one: the name in its certificate, if `tls` has
    one (mechanism EXTERNAL); otherwise `guest`, which RabbitMQ accepts only from
    localhost."""
    password: SecretRef | None = None
    """Read again for every new connection, so that a changed password needs no restart."""
    tls: Tls | None = None
    """If present, even if empty, the relay connects with TLS."""

    @model_validator(mode="after")
    def belong_together(self) -> "RabbitMQSettings":
        if (self.username is None) != (self.password is None):
            raise ValueError(USERNAME_AND_PASSWORD)
        return self
