"""RabbitMQ as an OutboxRelay has it."""

from pydantic import model_validator

from outbox_core.contract.publishers.rabbitmq import HOSTS_ALONE, RabbitMQBase
from outbox_operator.relay.spec.publishers.common import TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

USERNAME_AND_PASSWORD = "usernameSecretRef and passwordSecretRef go together: add the other one"  # noqa: S105


class RabbitMQ(RabbitMQBase):
    username_secret_ref: SecretKeyRef | None = None
    """The user that the relay logs in as. Without one: the name in its certificate, if `tls` has
    one (mechanism EXTERNAL); otherwise `guest`, which RabbitMQ accepts only from
    localhost."""
    password_secret_ref: SecretKeyRef | None = None
    """The password. When it changes, relays use the new one."""
    tls: TlsRefs | None = None
    """If present, even if empty, the relay connects with TLS."""

    @model_validator(mode="after")
    def belong_together(self) -> "RabbitMQ":
        if (self.username_secret_ref is None) != (self.password_secret_ref is None):
            raise ValueError(USERNAME_AND_PASSWORD)
        return self


RULES: Rules = {
    RabbitMQ: (
        Rule("!self.hosts.contains('@') && !self.hosts.contains('/')", HOSTS_ALONE),
        Rule("has(self.usernameSecretRef) == has(self.passwordSecretRef)", USERNAME_AND_PASSWORD),
    ),
}
