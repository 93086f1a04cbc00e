"""What several kinds have in common, as an OutboxRelay has it."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from outbox_core.contract.values import Duration, Settings
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

CERT_AND_KEY = "certSecretRef and keySecretRef go together: add the other one"
PASSWORD_AND_KEY = "keyPasswordSecretRef needs keySecretRef: add it"  # noqa: S105 - a message


class TlsRefs(Settings):
    """`Tls` of the contract."""

    ca_secret_ref: SecretKeyRef | None = None
    """The CA that signed the server's certificate. Default: the usual public CAs."""
    cert_secret_ref: SecretKeyRef | None = None
    """The relay's own certificate, if the server asks for one (mutual TLS)."""
    key_secret_ref: SecretKeyRef | None = None
    """The private key of that certificate."""
    key_password_secret_ref: SecretKeyRef | None = None
    """The key's password, if the key is encrypted."""

    @model_validator(mode="after")
    def belong_together(self) -> "TlsRefs":
        if (self.cert_secret_ref is None) != (self.key_secret_ref is None):
            raise ValueError(CERT_AND_KEY)
        if self.key_password_secret_ref is not None and self.key_secret_ref is None:
            raise ValueError(PASSWORD_AND_KEY)
        return self


class ServiceAccountToken(Settings):
    """A token of the pods' own service account, which Kubernetes signs and renews. In the relay's
    settings it is the file of a field `token`."""

    audience: Annotated[str, Field(min_length=1, max_length=500)]
    """For whom the token is: what the server expects in its claim `aud`."""
    expiration: Annotated[Duration, Field(ge=timedelta(minutes=10), le=timedelta(days=1))] = (
        timedelta(hours=1)
    )
    """How long a token is valid. Kubernetes renews it when a fifth of that time is left."""


RULES: Rules = {
    TlsRefs: (
        Rule("has(self.certSecretRef) == has(self.keySecretRef)", CERT_AND_KEY),
        Rule("!has(self.keyPasswordSecretRef) || has(self.keySecretRef)", PASSWORD_AND_KEY),
    ),
}
