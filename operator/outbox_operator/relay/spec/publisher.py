"""
The publisher of an OutboxRelay: as in the contract, but its secrets are keys of Secrets.

`settings` turns it into what the relay reads.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from outbox_core.contract.librdkafka import BY_KEY, REFUSED
from outbox_core.contract.settings import KafkaProducer, PublisherUnion, SaslMechanism
from outbox_core.contract.values import Settings
from outbox_operator.shared.objects import SecretKeyRef

ONE_OF = f"one of {', '.join(BY_KEY)}"


class KafkaTls(Settings):
    ca_secret_ref: SecretKeyRef | None = None
    """The CA that signed the broker's certificate. Default: the usual public CAs."""
    cert_secret_ref: SecretKeyRef | None = None
    """The relay's own certificate, if the broker asks for one (mutual TLS)."""
    key_secret_ref: SecretKeyRef | None = None
    """The private key of that certificate."""
    key_password_secret_ref: SecretKeyRef | None = None
    """The key's password, if the key is encrypted."""

    @model_validator(mode="after")
    def belong_together(self) -> "KafkaTls":
        if (self.cert_secret_ref is None) != (self.key_secret_ref is None):
            raise ValueError("certSecretRef and keySecretRef go together: add the other one")
        if self.key_password_secret_ref is not None and self.key_secret_ref is None:
            raise ValueError("keyPasswordSecretRef needs keySecretRef: add it")
        return self


class KafkaSasl(SaslMechanism):
    username_secret_ref: SecretKeyRef
    """The user name that the relay logs in with."""
    password_secret_ref: SecretKeyRef
    """The password. When it changes, relays use the new one."""


class Kafka(KafkaProducer):
    tls: KafkaTls | None = None
    """If present, even if empty, the relay connects with TLS."""
    sasl: KafkaSasl | None = None
    """If present, the relay logs in with a user name and a password."""
    config: Annotated[Mapping[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """More settings of librdkafka, for what has no field here; every value is text. Settings that
    the delivery guarantee depends on (acks, idempotence, ordering of requests, timeouts) cannot be
    changed, and secrets do not belong here."""

    @model_validator(mode="after")
    def config_fits(self) -> "Kafka":
        for name, why in REFUSED.items():
            if name in self.config:
                raise ValueError(f"config: {name} cannot be set: {why}")
        if self.config.get("partitioner", BY_KEY[0]) not in BY_KEY:
            raise ValueError(f"config: partitioner must keep a key in its partition: {ONE_OF}")
        return self


class Publisher(PublisherUnion[Kafka]):
    pass
