"""Apache Kafka as an OutboxRelay has it."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from outbox_core.contract.librdkafka import BY_KEY, REFUSED
from outbox_core.contract.publishers.kafka import KafkaProducer, SaslMechanism
from outbox_operator.relay.spec.publishers.common import ServiceAccountToken, TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

ONE_OF = f"one of {', '.join(BY_KEY)}"
BY_NAME = (
    "PLAIN and SCRAM need usernameSecretRef and passwordSecretRef, and neither tokenSecretRef nor "
    "serviceAccountToken"
)
BY_BEARER = (
    "OAUTHBEARER needs tokenSecretRef or serviceAccountToken, and neither usernameSecretRef nor "
    "passwordSecretRef"
)


class KafkaSasl(SaslMechanism):
    username_secret_ref: SecretKeyRef | None = None
    """The user name that the relay logs in with. Required, except with OAUTHBEARER."""
    password_secret_ref: SecretKeyRef | None = None
    """The password. When it changes, relays use the new one. Required, except with OAUTHBEARER."""
    token_secret_ref: SecretKeyRef | None = None
    """With OAUTHBEARER: the token, which somebody else renews."""
    service_account_token: ServiceAccountToken | None = None
    """With OAUTHBEARER: a token of the pods' own service account, for brokers that trust the
    cluster."""

    @model_validator(mode="after")
    def fits_its_mechanism(self) -> "KafkaSasl":
        named = self.username_secret_ref is not None, self.password_secret_ref is not None
        tokens = self.token_secret_ref is not None, self.service_account_token is not None
        if self.mechanism == "OAUTHBEARER":
            if any(named) or sum(tokens) != 1:
                raise ValueError(BY_BEARER)
        elif not all(named) or any(tokens):
            raise ValueError(BY_NAME)
        return self


class Kafka(KafkaProducer):
    tls: TlsRefs | None = None
    """If present, even if empty, the relay connects with TLS."""
    sasl: KafkaSasl | None = None
    """If present, the relay logs in: with a user name and a password, or with a token."""
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


def config_rules() -> Iterator[Rule]:
    """A rule for each reason, so that the message can give it."""
    for reason in dict.fromkeys(REFUSED.values()):
        names = [name for name, why in REFUSED.items() if why == reason]
        yield Rule(
            f"!has(self.config) || {names}.all(name, !(name in self.config))",
            f"config: {' and '.join(names)} cannot be set: {reason}",
        )
    yield Rule(
        "!has(self.config) || !('partitioner' in self.config) || "
        f"self.config['partitioner'] in {list(BY_KEY)}",
        f"config: partitioner must keep a key in its partition: {ONE_OF}",
    )


RULES: Rules = {
    Kafka: tuple(config_rules()),
    KafkaSasl: (
        Rule(
            "self.mechanism == 'OAUTHBEARER' || (has(self.usernameSecretRef) && "
            "has(self.passwordSecretRef) && !has(self.tokenSecretRef) && "
            "!has(self.serviceAccountToken))",
            BY_NAME,
        ),
        Rule(
            "self.mechanism != 'OAUTHBEARER' || (!has(self.usernameSecretRef) && "
            "!has(self.passwordSecretRef) && "
            "has(self.tokenSecretRef) != has(self.serviceAccountToken))",
            BY_BEARER,
        ),
    ),
}
