"""Redis Streams as an OutboxRelay has it."""

from typing import Self

from pydantic import model_validator

from outbox_core.contract.publishers.redis import NO_LOGIN_IN_URL, TLS_BY_URL, RedisStreams
from outbox_operator.relay.spec.publishers.common import TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

NAME_AND_PASSWORD = "usernameSecretRef needs passwordSecretRef: add it"  # noqa: S105 - a message


class Redis(RedisStreams):
    username_secret_ref: SecretKeyRef | None = None
    """The ACL user that the relay logs in as. Default: the server's user `default`."""
    password_secret_ref: SecretKeyRef | None = None
    """The password. When it changes, relays use the new one."""
    tls: TlsRefs | None = None
    """Certificates for a `rediss://` url."""

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        if self.tls is not None and not self.with_tls:
            raise ValueError(TLS_BY_URL)
        if self.username_secret_ref is not None and self.password_secret_ref is None:
            raise ValueError(NAME_AND_PASSWORD)
        return self


RULES: Rules = {
    Redis: (
        Rule("!self.url.contains('@')", NO_LOGIN_IN_URL),
        Rule("!has(self.tls) || self.url.startsWith('rediss:')", TLS_BY_URL),
        Rule("!has(self.usernameSecretRef) || has(self.passwordSecretRef)", NAME_AND_PASSWORD),
    ),
}
