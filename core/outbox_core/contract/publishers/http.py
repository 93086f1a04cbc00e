"""HTTP endpoints: webhooks, APIs, systems of record."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import Format, FormattedKind, Tls
from outbox_core.contract.values import Duration, SecretRef, Settings

FIXED_HOST: Final = re.compile(r"https?://[^/?#{]*(?:[/?#]|\Z)")
"""How a template begins if no event chooses its host. Any other beginning is not trusted."""

LOGIN_IN_URL: Final = r"^https?://[^/?#]*@"

NO_LOGIN_IN_URL = (
    "url and check.url must not contain a user name or a password, because everybody may read "
    "them: auth has fields for both"
)
URL_OR_PAYLOAD = "url is needed, except with request: Payload, whose events have their own"
HOSTS_NEEDED = "name allowedHosts: the events choose the host"
PAYLOAD_IS_RAW = "request: Payload and SorUpdate make their own message: leave format at Raw"
SOR_METHOD = "request: SorUpdate changes what exists: set method to PUT or PATCH"
TIMEOUT_FITS = "timeout must not be longer than deliveryTimeout: lower the one or raise the other"
AUTH = "name a token, or a username and a password"

Host = Annotated[str, Field(min_length=1, max_length=253)]
UrlTemplate = Annotated[str, Field(min_length=1, max_length=8000, pattern=r"^https?://")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[ -~]*$", max_length=8000)]


class HttpCheck(Settings):
    url: UrlTemplate
    """A template like `url`, which may use {idempotency_key} and {event_id} too. Before an event is
    sent again, the relay asks here with GET whether it has arrived already. 2xx: it has, and counts
    as published. 404: it has not, and is sent. Any other answer: it is tried again later. An event
    that was published before, and was replayed, is sent without asking."""


class HttpBase(FormattedKind):
    """What `relay.yaml` and an OutboxRelay share."""

    url: UrlTemplate | None = None
    """Where events go: a template that may use {event_type}, {aggregate_type}, {tenant_id} and
    {aggregate_id}, whose values are percent-encoded. Required, except with request: Payload."""
    request: Literal["Event", "Payload", "SorUpdate"] = "Event"
    """What a request is. Event: the event's payload, to `url`. Payload: the payload is JSON that
    describes the request by url, method, headers, body and idempotency_key. SorUpdate: the payload
    is JSON with entity_type, entity_id, change, evidence_pack and idempotency_key, and is sent as a
    proposed change of a system of record; `url` may use {entity_type} and {entity_id} too."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """With request: Payload it is the default where the payload has none."""
    headers: Annotated[Mapping[HeaderName, HeaderValue], Field(max_length=50)] = Field(
        default_factory=dict
    )
    """Headers of every request. They replace headers of the same name that an event has. Secrets do
    not belong here: use `auth`."""
    format: Format = "Raw"
    """Raw: the payload and the application's headers as they are, plus outbox-* headers.
    CloudEvents: the payload and the application's headers as they are, plus the event's fields as
    ce-* headers; or all of it as one JSON document, see cloudEventsMode. Debezium: the payload and
    one header, `id`."""
    cloud_events_mode: Literal["Binary", "Structured"] = "Binary"
    """With format CloudEvents. Binary: the fields are headers. Structured: fields and payload are
    one JSON document (application/cloudevents+json)."""
    max_message_bytes: Annotated[int, Field(ge=1000)] = 1_000_000
    """Requests with a larger body are refused before they are sent."""
    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(seconds=15)
    """How long one request may take, from connecting to the end of the answer's headers. At most
    deliveryTimeout, which is for a whole batch."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Requests at a time, of each worker."""
    per_endpoint: Annotated[int, Field(ge=1, le=256)] = 4
    """Of these, how many at most to one host and port: so a slow one leaves room for others. Raise
    it to `concurrency` if there is only one."""
    check: HttpCheck | None = None
    """If present, the relay asks before it sends an event again."""
    allowed_hosts: Annotated[tuple[Host, ...], Field(max_length=1000)] = ()
    """Hosts that an event may choose: a name, or `*.example.com` for all names below it. Required
    with request: Payload, and where `url` has a field in its host. Not needed for a host that `url`
    names."""
    allowed_networks: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Networks, such as 10.0.0.0/8, that a host which an event chose may be in. Otherwise private
    addresses, those of the cluster and of cloud metadata are refused. A host that `url` names may
    be anywhere."""

    @property
    def hosts_from_events(self) -> bool:
        return self.request == "Payload" or (
            self.url is not None and FIXED_HOST.match(self.url) is None
        )

    @property
    def _urls(self) -> tuple[str, ...]:
        given = (self.url, self.check.url if self.check else None)
        return tuple(url for url in given if url is not None)

    @model_validator(mode="after")
    def fits(self) -> Self:
        if (self.url is None) != (self.request == "Payload"):
            raise ValueError(URL_OR_PAYLOAD)
        if any(re.match(LOGIN_IN_URL, url) for url in self._urls):
            raise ValueError(NO_LOGIN_IN_URL)
        if self.hosts_from_events and not self.allowed_hosts:
            raise ValueError(HOSTS_NEEDED)
        if self.request != "Event" and self.format != "Raw":
            raise ValueError(PAYLOAD_IS_RAW)
        if self.request == "SorUpdate" and self.method == "POST":
            raise ValueError(SOR_METHOD)
        if self.timeout > self.delivery_timeout:
            raise ValueError(TIMEOUT_FITS)
        return self


class HttpAuth(Settings):
    token: SecretRef | None = None
    """Sent as a bearer token. Read again when its file changes."""
    username: SecretRef | None = None
    """With `password`: sent as basic authentication."""
    password: SecretRef | None = None
    """Read again when its file changes."""

    @model_validator(mode="after")
    def is_one_of_them(self) -> Self:
        basic = self.username is not None, self.password is not None
        if any(basic) != all(basic) or (self.token is not None) == all(basic):
            raise ValueError(AUTH)
        return self


class HttpSigning(Settings):
    secrets: Annotated[tuple[SecretRef, ...], Field(min_length=1, max_length=2)]
    """Secrets of Standard Webhooks: `whsec_` and base64. While there are two, every request has a
    signature of each: so receivers can change from one to the other. Read again when their files
    change."""


class HttpSettings(HttpBase):
    auth: HttpAuth | None = None
    """How the relay authenticates itself: by a bearer token, or by user name and password."""
    signing: HttpSigning | None = None
    """If present, requests are signed by Standard Webhooks: webhook-id, webhook-timestamp and
    webhook-signature."""
    tls: Tls | None = None
    """For https: another CA, or the relay's own certificate (mutual TLS)."""
