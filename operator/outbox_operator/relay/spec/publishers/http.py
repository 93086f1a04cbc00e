"""HTTP endpoints as an OutboxRelay has them."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.http import (
    HOSTS_NEEDED,
    LOGIN_IN_URL,
    NO_LOGIN_IN_URL,
    PAYLOAD_IS_RAW,
    SOR_METHOD,
    TIMEOUT_FITS,
    URL_OR_PAYLOAD,
    HttpBase,
)
from outbox_core.contract.values import Settings
from outbox_operator.relay.spec.publishers.common import ServiceAccountToken, TlsRefs
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules, length

ONE_LOGIN = (
    "name one of tokenSecretRef, serviceAccountToken, or usernameSecretRef with passwordSecretRef"
)


class HttpAuthRefs(Settings):
    token_secret_ref: SecretKeyRef | None = None
    """Sent as a bearer token. When it changes, relays use the new one."""
    service_account_token: ServiceAccountToken | None = None
    """A token of the pods' own service account, sent as a bearer token: for services that trust the
    cluster."""
    username_secret_ref: SecretKeyRef | None = None
    """With passwordSecretRef: sent as basic authentication."""
    password_secret_ref: SecretKeyRef | None = None
    """When it changes, relays use the new one."""

    @model_validator(mode="after")
    def is_one_of_them(self) -> Self:
        basic = self.username_secret_ref is not None, self.password_secret_ref is not None
        ways = (self.token_secret_ref is not None, self.service_account_token is not None, *basic)
        if basic[0] != basic[1] or sum(ways[:3]) != 1:
            raise ValueError(ONE_LOGIN)
        return self


class HttpSigningRefs(Settings):
    secret_refs: Annotated[tuple[SecretKeyRef, ...], Field(min_length=1, max_length=2)]
    """Secrets of Standard Webhooks: `whsec_` and base64. While there are two, every request has a
    signature of each: so receivers can change from one to the other. When one changes, relays use
    the new one."""


class Http(HttpBase):
    auth: HttpAuthRefs | None = None
    """How the relay authenticates itself: by a bearer token, or by user name and password."""
    signing: HttpSigningRefs | None = None
    """If present, requests are signed by Standard Webhooks: webhook-id, webhook-timestamp and
    webhook-signature."""
    tls: TlsRefs | None = None
    """For https: another CA, or the relay's own certificate (mutual TLS)."""


RULES: Rules = {
    Http: (
        Rule("has(self.url) == (self.request != 'Payload')", URL_OR_PAYLOAD),
        Rule(
            f"(!has(self.url) || !self.url.matches('{LOGIN_IN_URL}')) && "
            f"(!has(self.check) || !self.check.url.matches('{LOGIN_IN_URL}'))",
            NO_LOGIN_IN_URL,
        ),
        Rule(
            "(has(self.allowedHosts) && size(self.allowedHosts) > 0) || "
            "(has(self.url) && self.url.matches('^https?://[^/?#{]*([/?#]|$)'))",
            HOSTS_NEEDED,
        ),
        Rule("self.request == 'Event' || self.format == 'Raw'", PAYLOAD_IS_RAW),
        Rule("self.request != 'SorUpdate' || self.method != 'POST'", SOR_METHOD),
        Rule(f"{length('self.timeout')} <= {length('self.deliveryTimeout')}", TIMEOUT_FITS),
    ),
    HttpAuthRefs: (
        Rule(
            "has(self.usernameSecretRef) == has(self.passwordSecretRef) && "
            "[has(self.tokenSecretRef), has(self.serviceAccountToken), "
            "has(self.usernameSecretRef)].exists_one(given, given)",
            ONE_LOGIN,
        ),
    ),
}
