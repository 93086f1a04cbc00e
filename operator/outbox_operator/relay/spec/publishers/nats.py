"""NATS JetStream as an OutboxRelay has it."""

from pydantic import model_validator

from outbox_core.contract.publishers.nats import NatsBase
from outbox_operator.relay.spec.publishers.common import TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

NAME_AND_PASSWORD = "usernameSecretRef and passwordSecretRef go together: add the other one"  # noqa: S105 - a message
ONE_WAY = (
    "log in by usernameSecretRef and passwordSecretRef, tokenSecretRef or credentialsSecretRef: "
    "only one"
)


class Nats(NatsBase):
    username_secret_ref: SecretKeyRef | None = None
    """The user name that the relay logs in with. Needs `passwordSecretRef`."""
    password_secret_ref: SecretKeyRef | None = None
    """The password. When it changes, relays use the new one."""
    token_secret_ref: SecretKeyRef | None = None
    """A token to log in with, instead of a user name."""
    credentials_secret_ref: SecretKeyRef | None = None
    """A `.creds` file (a user's JWT and its nkey seed), or an nkey seed alone."""
    tls: TlsRefs | None = None
    """If present, even if empty, the relay connects with TLS."""

    @model_validator(mode="after")
    def logs_in_one_way(self) -> "Nats":
        if (self.username_secret_ref is None) != (self.password_secret_ref is None):
            raise ValueError(NAME_AND_PASSWORD)
        ways = (self.username_secret_ref, self.token_secret_ref, self.credentials_secret_ref)
        if sum(way is not None for way in ways) > 1:
            raise ValueError(ONE_WAY)
        return self


RULES: Rules = {
    Nats: (
        Rule("has(self.usernameSecretRef) == has(self.passwordSecretRef)", NAME_AND_PASSWORD),
        Rule(
            "[has(self.usernameSecretRef), has(self.tokenSecretRef), "
            "has(self.credentialsSecretRef)].filter(given, given).size() <= 1",
            ONE_WAY,
        ),
    ),
}
