"""E-mail as an OutboxRelay has it."""

from pydantic import model_validator

from outbox_core.contract.publishers.smtp import LOGIN_IN_CLEAR, TLS_UNUSED, SmtpBase
from outbox_operator.relay.spec.publishers.common import TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

NAME_AND_PASSWORD = "usernameSecretRef and passwordSecretRef go together: add the other one"  # noqa: S105


class Smtp(SmtpBase):
    username_secret_ref: SecretKeyRef | None = None
    """The user name that the relay logs in with."""
    password_secret_ref: SecretKeyRef | None = None
    """The password. When it changes, new connections use the new one."""
    tls: TlsRefs | None = None
    """CA to trust, and the relay's client certificate. Default: the system's CAs, no
    certificate."""

    @model_validator(mode="after")
    def fits_its_encryption(self) -> "Smtp":
        if (self.username_secret_ref is None) != (self.password_secret_ref is None):
            raise ValueError(NAME_AND_PASSWORD)
        return self.encrypted(self.username_secret_ref is not None, self.tls is not None)


RULES: Rules = {
    Smtp: (
        Rule("has(self.usernameSecretRef) == has(self.passwordSecretRef)", NAME_AND_PASSWORD),
        Rule("self.startTls != 'None' || !has(self.usernameSecretRef)", LOGIN_IN_CLEAR),
        Rule("self.startTls != 'None' || !has(self.tls)", TLS_UNUSED),
    ),
}
